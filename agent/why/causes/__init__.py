"""From facts to causes, the most likely first, and what to do.

`probable_cause.causes` asks the modules `causes_said` (its output), `causes_launched` (a launcher's report of its
workers), `causes_hardware` (cards and node) and `causes_ended` (its records) in order; `found.Cause` is what they
return. `sign_words` says what one line tells of its rank, `consequences` which lines follow from another rank's end,
`hardened` where the job's hardening explains an error. `past_attempts` asks for earlier attempts, `first_node` says
which node of several is to blame. `advice.advise` is the one table from a cause to a recommendation.
"""
