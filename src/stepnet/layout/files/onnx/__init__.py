"""ONNX models: recurrent nodes with their weights, found in graphs and written as graphs."""
