// SPDX-License-Identifier: Apache-2.0
// The same in C++17.
#include <flashattn.h>

#include <array>
#include <cstdio>
#include <vector>

namespace {

fa_tensor tensor(std::vector<float> &data, std::array<int64_t, 4> &shape) {
    return fa_tensor{data.data(), {FA_DEVICE_CPU, 0}, 4, FA_FLOAT32, shape.data(), nullptr, 0};
}

} // namespace

int main() {
    std::vector<float> q_data{1, 2}, k_data{3, 4, 3, 4}, v_data{1, 10, 3, 30}, out_data{0, 0};
    std::array<int64_t, 4> q_shape{1, 1, 1, 2}, k_shape{1, 2, 1, 2};
    const fa_tensor q = tensor(q_data, q_shape), k = tensor(k_data, k_shape), v = tensor(v_data, k_shape);
    const fa_tensor out = tensor(out_data, q_shape);

    fa_options options{};
    options.size = sizeof options;
    options.causal = FA_CAUSAL_BOTTOM_RIGHT;
    if (fa_forward(&q, &k, &v, &options, &out, nullptr) != FA_OK) {
        std::fprintf(stderr, "%s\n", fa_last_error());
        return 1;
    }
    std::printf("flashattn %s from C++: %g %g\n", fa_version_text(), double{out_data[0]}, double{out_data[1]});
    return out_data == std::vector<float>{2, 20} ? 0 : 1;
}
