// example APP [ENDPOINT]: what the app takes, and one request of zeros with a deadline of 50 ms.
//
//   g++ -std=c++17 -O2 example.cpp -lzmq -o example
#include <cstdio>

#include "edgeserve.hpp"

int main(int count, char** words) {
  if (count < 2) {
    std::fprintf(stderr, "usage: example APP [ENDPOINT]\n");
    return 2;
  }
  const std::string app = words[1];
  try {
    edgeserve::Client client(count > 2 ? words[2] : "");
    const auto apps = client.ask("apps");
    const auto* about = apps.find(app);
    if (!about) throw edgeserve::Error("unknown_app", "the server has no app " + app);
    edgeserve::Inputs inputs;
    std::vector<std::vector<char>> zeros;
    if (const auto* declared = about->find("inputs"))
      for (const auto& input : declared->entries) {
        std::vector<std::int64_t> shape;
        for (const auto& extent : input.second.find("shape")->items) {
          const double length = extent.as_double();
          shape.push_back(length > 0 ? static_cast<std::int64_t>(length) : 1);  // an open axis
        }
        auto tensor = edgeserve::Tensor::raw(input.second.find("dtype")->bytes, nullptr, shape);
        zeros.emplace_back(tensor.bytes);
        tensor.data = zeros.back().data();
        inputs.emplace(input.first, tensor);
      }
    edgeserve::Options options;
    options.slo_ms = 50;
    const auto answer = client.infer(app, inputs, options);
    for (const auto& output : answer.outputs)
      std::printf("%s: %s, %zu elements\n", output.first.c_str(), output.second.dtype.c_str(), output.second.size());
    std::printf("%.2f ms%s\n", answer.total_ms, answer.late ? ", late" : "");
  } catch (const edgeserve::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.code.c_str(), error.what());
    return 1;
  }
  return 0;
}
