"""What a job may not do, as its processes carry it out: `confinement` says what each of them is given, by what the
daemon decided (`model/hardening.py`); `private_tmp` makes and removes the folders behind a /tmp of the job's own;
`mounts` finds what must be mounted again.
"""
