"""Commands about what a job did and why it ended: `muster why`, `muster report`.

`cli/main` alone imports them. `why` asks the daemon, `report_file` reads the disk.
"""
