// test ENDPOINT: asks a server whose app `echo` returns its inputs, `parts` sends pieces, `late` refuses with numbers,
// and `sleep` never answers by itself. Prints a line per thing that was tried; tests/live/test_cpp_client.py compares them.
#include <cstdio>
#include <iostream>

#include "edgeserve.hpp"

using edgeserve::Client;
using edgeserve::Error;
using edgeserve::Event;
using edgeserve::Inputs;
using edgeserve::Options;
using edgeserve::Tensor;

static void say(const std::string& what, bool holds) { std::cout << what << ": " << (holds ? "yes" : "NO") << std::endl; }

template <class Do>
static std::string code_of(Do act) {
  try {
    act();
  } catch (const Error& error) {
    return error.code;
  }
  return "none";
}

static void values(Client& client) {
  const std::vector<float> numbers = {1, 2.5, -3, 4};
  const std::vector<std::int64_t> longs = {std::int64_t{1} << 60, -5};
  const std::vector<std::uint8_t> bytes = {1, 2, 3};
  const char flags[] = {1, 0};
  Options options;
  options.slo_ms = 5000;
  options.priority_class = "background";
  options.hints["length"] = 2;
  auto answer = client.infer("echo", {{"x", Tensor::of(numbers, {2, 2})}, {"l", Tensor::of(longs, {2})},
                                      {"b", Tensor::of(bytes, {1, 3})}, {"f", Tensor::raw("bool", flags, {2})},
                                      {"h", Tensor::raw("float16", numbers.data(), {0, 3})}, {"t", "gr\xc3\xbc\xc3\x9f dich"}},
                             options);
  const auto& x = answer.outputs.at("x");
  say("numbers", x.shape == std::vector<std::int64_t>({2, 2}) && x.as<float>()[1] == 2.5F && x.as<float>()[2] == -3);
  say("longs", answer.outputs.at("l").as<std::int64_t>()[0] == std::int64_t{1} << 60 &&
                   answer.outputs.at("l").as<std::int64_t>()[1] == -5);
  say("bytes", answer.outputs.at("b").as<std::uint8_t>()[2] == 3 && answer.outputs.at("f").dtype == "bool");
  say("empty", answer.outputs.at("h").bytes == 0 && answer.outputs.at("h").shape[1] == 3);
  say("text", answer.texts.at("t") == std::vector<std::string>({"gr\xc3\xbc\xc3\x9f dich"}));
  say("terms", answer.outcome == "completed" && !answer.late && answer.total_ms == 0.001 && answer.breakdown_ms.size() == 4);
  const std::vector<std::string> words = {"", std::string("a\0", 2), "gr\xc3\xbc\xc3\x9f", "b", std::string(100000, 'x'), "c"};
  auto texts = client.infer("echo", {{"w", Tensor::texts(words, {2, 3})}, {"none", Tensor::texts({}, {0})}});
  say("words", texts.outputs.at("w").as_texts() == words && texts.outputs.at("w").shape[1] == 3 &&
                   texts.outputs.at("none").as_texts().empty());
  say("wrong words", code_of([&] { Tensor::texts(words, {5}); }) == "bad_input" && code_of([&] { x.as_texts(); }) == "bad_input");
  say("wrong type", code_of([&] { x.as<double>(); }) == "bad_input");
  say("wrong shape", code_of([&] { Tensor::of(numbers, {3}); }) == "bad_input");
  say("question", client.ask("health").find("ready")->flag);
}

static void errors(Client& client) {
  say("unknown app", code_of([&] { client.infer("nothing", {}); }) == "unknown_app");
  Options past;
  past.slo_ms = -1;
  say("expired", code_of([&] { client.infer("echo", {}, past); }) == "deadline_expired");
  try {
    client.infer("late", {});
    say("refusal", false);
  } catch (const Error& error) {
    say("refusal", error.code == "rejected" && error.reason == "cannot_make_deadline" && error.lane == "cpu0" &&
                       error.expected_ms == 7.5 && error.wait_ms == 2 && error.left_ms == 5 && error.slo_ms_min == 9.5);
  }
  say("timed out", code_of([&] { client.infer("sleep", {}, {}, 20); }) == "timed_out");
}

static void many(Client& client) {
  std::map<std::uint64_t, std::int32_t> sent;
  for (std::int32_t number = 0; number < 200; ++number) sent[client.submit("echo", {{"n", Tensor::of(&number, {})}})] = number;
  bool right = true;
  Event event;
  while (!sent.empty() && client.poll(&event, 30000)) {
    auto found = sent.find(event.id);
    right = right && found != sent.end() && event.kind == Event::completed &&
            event.answer.outputs.at("n").as<std::int32_t>()[0] == found->second;
    if (found != sent.end()) sent.erase(found);
  }
  say("many", right && sent.empty() && client.in_flight() == 0);
  const auto slow = client.submit("sleep", {});
  client.infer("echo", {});
  client.cancel(slow);
  say("cancelled", client.poll(&event, 30000) && event.id == slow && event.error && event.error->code == "cancelled");
  std::vector<std::int32_t> pieces;
  auto whole = client.stream("parts", {}, [&](const edgeserve::Answer& piece) {
    pieces.push_back(piece.outputs.at("n").as<std::int32_t>()[0]);
  });
  say("pieces", pieces == std::vector<std::int32_t>({0, 1, 2}) && whole.outcome == "completed");
}

static // Memory that is written and sent again and again, and an answer that is sent on.
void buffers(Client& client) {
  bool same = true;
  int asked = 0;
  {
    auto buffer = client.buffer("float32", {300, 300});
    auto* pixels = static_cast<float*>(buffer.data);
    for (int round = 0; round < 12; ++round) {  // the server knows the form of the later ones
      for (int index = 0; index < 90000; ++index) pixels[index] = static_cast<float>(index + round);
      const auto id = client.submit("echo", {{"x", buffer.tensor}});
      Event event;
      if (!client.poll(&event, 60000) || event.id != id || event.error) break;
      const auto answer = event.answer.outputs.at("x");
      same = same && answer.data != buffer.data && std::memcmp(answer.data, pixels, buffer.tensor.bytes) == 0;
      const auto again = client.infer("echo", {{"x", answer}});
      ++asked;
      same = same && std::memcmp(again.outputs.at("x").data, pixels, buffer.tensor.bytes) == 0;
    }
    const std::size_t before = client.shared_bytes_free();
    const auto slow = client.submit("sleep", {{"x", buffer.tensor}});
    same = same && client.shared_bytes_free() == before;  // nothing was copied
    client.cancel(slow);
    Event event;
    same = same && client.poll(&event, 60000) && event.id == slow && event.error && ++asked == 13;
    same = same && client.buffer("float32", {2}).data != nullptr;
  }
  say("buffers", same && client.shared_bytes_free() == client.shared_bytes());
}

void large(Client& client, bool may_share) {
  std::vector<float> image(3 * 224 * 224);
  for (std::size_t index = 0; index < image.size(); ++index) image[index] = static_cast<float>(index);
  const Inputs inputs = {{"x", Tensor::of(image, {3, 224, 224})}};
  bool same = true;
  for (int count = 0; count < 5; ++count) {
    auto answer = client.infer("echo", inputs);
    same = same && std::memcmp(answer.outputs.at("x").data, image.data(), image.size() * 4) == 0;
  }
  say("large", same);
  say("shared", client.has_shared_memory() == may_share);
  if (!may_share) return;
  std::vector<edgeserve::Answer> kept;
  std::size_t held = 0;
  for (int count = 0; count < 12; ++count) {
    kept.push_back(client.infer("echo", inputs));
    held += kept.back().outputs.at("x").bytes;
  }
  say("fallback", held > client.shared_bytes() && client.shared_bytes_free() < 2 * image.size() * 4);
  for (auto& answer : kept) same = same && std::memcmp(answer.outputs.at("x").data, image.data(), image.size() * 4) == 0;
  kept.clear();
  say("given back", same && client.shared_bytes_free() == client.shared_bytes());
  buffers(client);
}

int main(int count, char** words) {
  if (count < 3) return 2;
  const bool may_share = std::string(words[2]) == "share";
  try {
    edgeserve::ClientOptions patient;  // also on a machine that is busy
    patient.shared_memory_wait_ms = 60000;
    Client client(words[1], patient);
    values(client);
    errors(client);
    many(client);
    large(client, may_share);
    const auto last = client.submit("end", {});
    Event event;
    say("server gone", client.poll(&event, 60000) && event.id == last && event.error && event.error->code == "server_gone");
    say("not sent again", client.in_flight() == 0);
    say("nobody", code_of([&] { client.infer("echo", {}, {}, 50); }) == "timed_out");
  } catch (const std::exception& error) {
    std::cout << "stopped: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
