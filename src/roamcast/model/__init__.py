"""What is said: places, contexts, filters, time, messages. Pure; imports only errors."""
