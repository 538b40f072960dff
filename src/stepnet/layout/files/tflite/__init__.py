"""TFLite models: recurrent operators with their weights, and the flatbuffers they lie in."""
