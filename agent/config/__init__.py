"""The daemon's configuration: every key, its default, and the errors of a wrong file.

`schema.Config` and its tables declare every setting (`access_settings`: who may reach the daemon, and whose jobs;
`hardening_settings`: what jobs may not do; `notify_settings`, `reset_settings`), `rules` the kinds of values.
`loading` reads the file, `live_config` keeps the configuration in force and reads it again on SIGHUP, `commented`
prints it with every default, `listen_address` reads the addresses of [metrics].
"""
