"""The results of TensorFlow Lite's interpreter for models that stepnet wrote, one sequence at a time."""

import os

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")

import warnings

import numpy as np
import tensorflow as tf
from judge import main


def judged(job):
    for x in job.inputs:
        interpreter = tf.lite.Interpreter(job.path)
        place = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(place, (1, *x.shape[1:]))
        interpreter.allocate_tensors()
        outputs = []
        for row in x:
            interpreter.reset_all_variables()
            interpreter.set_tensor(place, row[None])
            interpreter.invoke()
            outputs.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0])
        yield np.stack(outputs)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(judged, {"tensorflow": tf.__version__})
