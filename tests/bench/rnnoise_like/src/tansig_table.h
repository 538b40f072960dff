/* Values of tanh: */ static const float table[] = {0.0f, 0.5f, 1.0f};
