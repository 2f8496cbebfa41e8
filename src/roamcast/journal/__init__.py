"""The one record that both drivers write."""
