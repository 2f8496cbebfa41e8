"""Messages of casts counted hop by hop, without machines: for the figures of TCC at scale.

In: routers with their roles and archived contexts, a cast, a policy. Out: the messages that each
link carries, one by one (`reference`) or only counted, in compiled code (`counting`).
"""
