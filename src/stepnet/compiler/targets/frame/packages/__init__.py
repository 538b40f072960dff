"""Packages of machine code: the files that the tools of browsers, desktops and microcontrollers read."""
