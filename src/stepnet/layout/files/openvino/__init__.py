"""Models of OpenVINO: an .xml file with the operations, and a .bin file with the numbers."""
