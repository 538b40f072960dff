"""The results of onnxruntime for models that stepnet wrote."""

import onnxruntime
from judge import main


def judged(job):
    session = onnxruntime.InferenceSession(job.path, providers=["CPUExecutionProvider"])
    (name,) = [one.name for one in session.get_inputs()]
    for x in job.inputs:
        yield session.run(None, {name: x})[0]


if __name__ == "__main__":
    main(judged, {"onnxruntime": onnxruntime.__version__})
