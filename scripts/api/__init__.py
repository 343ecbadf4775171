"""The pages about the API in docs/reference/api/.

`record` makes each call once, of a real daemon on fake cards, and writes recorded.json; everything else is made of that
file and of the code: `calls_page` (a page per service), `sequences_page`, `states_page`.
"""
