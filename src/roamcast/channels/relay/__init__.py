"""A relay serves clients on unicast links on a server's behalf (AMS 17, "agents").

In: its clients' requests, the server's channels. Out: unicast to them, one client to the server.
"""
