"""Sends selected events to the operator's program and to webhooks.

Others use: `sender.Notifier`.
"""
