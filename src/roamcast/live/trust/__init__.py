"""The trusted node under asyncio: its own database, key and inboxes, in this process or another.

In: requests of people and of brokers. Out: pools of credentials, mail, counts.
"""
