"""The commands for people, on declared machines: what they print, make and find."""
