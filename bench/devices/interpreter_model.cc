/* Writes the LSTM of frames.h, of STEPS steps, as a model of TensorFlow Lite to the file that it is given: a program
 * for this machine.
 */
#include <cstdio>
#include <memory>
#include <vector>

#include "frames.h"
#include "tensorflow/lite/schema/schema_generated.h"

static tflite::ModelT model;
static auto graph = std::make_unique<tflite::SubGraphT>();

static int tensor(std::vector<int> shape, tflite::TensorType type, double scale, const void *data, size_t size)
{
    auto made = std::make_unique<tflite::TensorT>();
    made->shape = shape;
    made->type = type;
    made->quantization = std::make_unique<tflite::QuantizationParametersT>();
    made->quantization->scale = {static_cast<float>(scale)};
    made->quantization->zero_point = {0};
    if (size) {
        auto buffer = std::make_unique<tflite::BufferT>();
        const auto *bytes = static_cast<const unsigned char *>(data);
        buffer->data.assign(bytes, bytes + size);
        made->buffer = static_cast<unsigned>(model.buffers.size());
        model.buffers.push_back(std::move(buffer));
    }
    graph->tensors.push_back(std::move(made));
    return static_cast<int>(graph->tensors.size()) - 1;
}

int main(int, char **arguments)
{
    using namespace tflite;
    const int steps = STEPS, units = UNITS, inputs = INPUTS;
    model.version = 3;
    model.buffers.push_back(std::make_unique<BufferT>());
    auto step = std::make_unique<OperatorT>();
    step->inputs.assign(24, -1);
    auto &in = step->inputs;
    in[0] = tensor({steps, 1, inputs}, TensorType_INT8, x_scale, nullptr, 0);
#define GATE(name, at) \
    in[1 + at] = tensor({units, inputs}, TensorType_INT8, name##_input_scale, name##_input, sizeof name##_input); \
    in[5 + at] = tensor({units, units}, TensorType_INT8, name##_hidden_scale, name##_hidden, sizeof name##_hidden); \
    in[12 + at] = tensor({units}, TensorType_INT32, x_scale * name##_input_scale, name##_input_bias, sizeof name##_input_bias)
    GATE(i, 0);
    GATE(f, 1);
    GATE(g, 2);
    GATE(o, 3);
    in[18] = tensor({1, units}, TensorType_INT8, y_scale, nullptr, 0);
    in[19] = tensor({1, units}, TensorType_INT16, 1.0 / (1 << -(CELL_POWER)), nullptr, 0);
    for (int at : {18, 19})
        graph->tensors[static_cast<size_t>(in[static_cast<size_t>(at)])]->is_variable = true;
    step->outputs = {tensor({steps, 1, units}, TensorType_INT8, y_scale, nullptr, 0)};
    graph->inputs = {in[0]};
    graph->outputs = step->outputs;
    UnidirectionalSequenceLSTMOptionsT options;
    options.fused_activation_function = ActivationFunctionType_TANH;
    options.time_major = true;
    step->builtin_options.Set(std::move(options));
    graph->operators.push_back(std::move(step));
    model.subgraphs.push_back(std::move(graph));
    auto code = std::make_unique<OperatorCodeT>();
    code->builtin_code = BuiltinOperator_UNIDIRECTIONAL_SEQUENCE_LSTM;
    code->deprecated_builtin_code = static_cast<int8_t>(BuiltinOperator_UNIDIRECTIONAL_SEQUENCE_LSTM);
    code->version = 3;
    model.operator_codes.push_back(std::move(code));
    flatbuffers::FlatBufferBuilder builder;
    FinishModelBuffer(builder, Model::Pack(builder, &model));
    FILE *file = fopen(arguments[1], "wb");
    const size_t size = builder.GetSize();
    return file && fwrite(builder.GetBufferPointer(), 1, size, file) == size && fclose(file) == 0 ? 0 : 1;
}
