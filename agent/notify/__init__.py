"""Tells chosen events to a program of the operator's and to webhooks.

Others use: `sender.Notifier`.
"""
