"""What some fields of the spec may be: rules that know no job, for the spec, the daemon's settings and the programs.

`notify_rules`: events and webhooks; `staging_urls`: what is copied from where; `capabilities`: names and numbers;
`boot_files`: what lies beside a boot file on ModelArts.
"""
