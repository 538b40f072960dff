"""Models of OpenVINO: an .xml that says what is computed, and a .bin of numbers."""
