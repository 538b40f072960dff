"""Reads PaddlePaddle's saved programs, of both formats, without Paddle."""
