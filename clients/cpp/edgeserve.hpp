// A client of the EdgeServe bus in one header: C++17, libzmq's C API, Linux. The messages are those of docs/reference/protocol.md.
//
//   edgeserve::Client client;                                            // this user's own server
//   std::vector<float> pixels(3 * 224 * 224);
//   edgeserve::Options options;
//   options.slo_ms = 33;
//   auto answer = client.infer("detect", {{"image", edgeserve::Tensor::of(pixels, {3, 224, 224})}}, options);
//   const float* scores = answer.outputs.at("scores").as<float>();
//
// A Client belongs to one thread at a time and has no thread of its own: while requests are in flight, call poll() (or
// infer()) at least every few seconds, or the server takes the client for gone. Answers may be kept, copied and destroyed
// on any thread. Compile with -std=c++17, link with -lzmq.
#ifndef EDGESERVE_HPP
#define EDGESERVE_HPP

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace edgeserve {

constexpr double kUnset = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kLargeBytes = 64 * 1024;  // from here on a tensor goes into shared memory, where there is some

// A request that had no answer. `code` is one of docs/reference/protocol.md, or `timed_out`, `server_gone`, `closed`. Numbers that the
// server did not say are NaN.
class Error : public std::runtime_error {
 public:
  Error(std::string code_, const std::string& message) : std::runtime_error(message), code(std::move(code_)) {}
  std::string code, reason, lane;
  std::uint64_t request_id = 0;
  double expected_ms = kUnset, wait_ms = kUnset, left_ms = kUnset, slo_ms_min = kUnset;
};

// Elements in C order. An input refers to the caller's memory, which must live until submit() or infer() has returned;
// an output keeps what it refers to alive.
struct Tensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<const void> owner;

  template <class T>
  static Tensor of(const T* data, std::vector<std::int64_t> shape);
  template <class T>
  static Tensor of(const std::vector<T>& data, std::vector<std::int64_t> shape) {
    Tensor tensor = of(data.data(), std::move(shape));
    if (tensor.bytes != data.size() * sizeof(T))
      throw Error("bad_input", "the shape needs " + std::to_string(tensor.bytes) + " bytes, the vector has " +
                                   std::to_string(data.size() * sizeof(T)));
    return tensor;
  }
  // Any dtype by its name, such as float16 or bool, from its bytes.
  static Tensor raw(std::string dtype, const void* data, std::vector<std::int64_t> shape);
  // Texts, dtype "text": kept by the tensor.
  static Tensor texts(const std::vector<std::string>& words, std::vector<std::int64_t> shape);

  template <class T>
  const T* as() const;
  std::vector<std::string> as_texts() const;
  std::size_t size() const {
    std::size_t count = 1;
    for (auto extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
  }
};

// A tensor whose content is written after it was made: `Client::buffer`.
struct Buffer {
  Tensor tensor;
  void* data = nullptr;
};

// A tensor or a text.
struct Input {
  Input(Tensor one) : tensor(std::move(one)) {}                            // NOLINT: meant to convert
  Input(std::string one) : text(std::move(one)), is_text(true) {}          // NOLINT
  Input(const char* one) : text(one), is_text(true) {}                     // NOLINT
  Tensor tensor;
  std::string text;
  bool is_text = false;
};
using Inputs = std::map<std::string, Input>;

// What is left unset is as the app says.
struct Options {
  double slo_ms = kUnset, value = kUnset, quality_min = kUnset;
  std::string priority_class, on_late, stream, traceparent;  // priority_class: critical, normal or background
  std::map<std::string, double> hints;
  bool reset = false;  // begin the stream anew: what it left behind is forgotten
  bool pieces = false;
};

struct Answer {
  std::map<std::string, Tensor> outputs;
  std::map<std::string, std::vector<std::string>> texts;  // one string, or a list of them
  std::string outcome, reason;
  bool late = false;
  std::uint64_t request_id = 0;
  double total_ms = 0;
  std::vector<double> breakdown_ms;  // waiting, loading, behind earlier work on the lane, running
  double quality = kUnset;  // of a fitted ensemble or a variant: what the answer is expected to be worth, 0 to 1
  std::vector<std::string> branches;
  std::string variant;  // the model that answered, where the app's model has variants
};

// --- msgpack: the types that the bus uses ----------------------------------------------------------------------------

namespace msgpack {

struct Value {
  enum Kind { nil, boolean, integer, unsigned_integer, real, text, binary, list, map } kind = nil;
  bool flag = false;
  std::int64_t whole = 0;
  std::uint64_t natural = 0;
  double number = 0;
  std::string bytes;  // of texts and binaries
  std::vector<Value> items;
  std::vector<std::pair<std::string, Value>> entries;

  const Value* find(const std::string& key) const {
    for (auto& entry : entries)
      if (entry.first == key) return &entry.second;
    return nullptr;
  }
  bool is_number() const { return kind == integer || kind == unsigned_integer || kind == real; }
  double as_double() const {
    return kind == real ? number : kind == integer ? static_cast<double>(whole) : static_cast<double>(natural);
  }
  std::uint64_t as_natural(const char* what) const {
    if (kind == unsigned_integer) return natural;
    if (kind == integer && whole >= 0) return static_cast<std::uint64_t>(whole);
    throw Error("malformed", std::string(what) + " is no whole number from 0");
  }
  std::string as_text() const { return kind == text ? bytes : std::string(); }
};

class Writer {
 public:
  std::string out;
  void map(std::size_t count) { head(count, 0x80, 15, 0, 0xde); }
  void list(std::size_t count) { head(count, 0x90, 15, 0, 0xdc); }
  void text(const std::string& value) {
    head(value.size(), 0xa0, 31, 0xd9, 0xda);
    out += value;
  }
  void binary(const std::string& value) {
    head(value.size(), 0, -1, 0xc4, 0xc5);
    out += value;
  }
  void boolean(bool value) { out += static_cast<char>(value ? 0xc3 : 0xc2); }
  void natural(std::uint64_t value) {
    if (value < 128) {
      out += static_cast<char>(value);
      return;
    }
    out += static_cast<char>(0xcf);
    big(value, 8);
  }
  void real(double value) {
    std::uint64_t bits;
    std::memcpy(&bits, &value, 8);
    out += static_cast<char>(0xcb);
    big(bits, 8);
  }

 private:
  void big(std::uint64_t value, int size) {
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  }
  // Lengths of up to 16 bits follow `code16`, of 32 bits the code after it.
  void head(std::size_t count, int fix, int fix_max, int code8, int code16) {
    if (fix_max >= 0 && count <= static_cast<std::size_t>(fix_max)) {
      out += static_cast<char>(fix | static_cast<int>(count));
    } else if (code8 && count < 256) {
      out += static_cast<char>(code8);
      big(count, 1);
    } else if (count < 65536) {
      out += static_cast<char>(code16);
      big(count, 2);
    } else {
      out += static_cast<char>(code16 + 1);
      big(count, 4);
    }
  }
};

class Reader {
 public:
  Reader(const void* data, std::size_t size) : at_(static_cast<const unsigned char*>(data)), end_(at_ + size) {}
  Value read(int depth = 0) {
    if (depth > 64) throw Error("malformed", "the reply is nested too deep");
    const unsigned char code = take(1)[0];
    if (code < 0x80) return natural(code);
    if (code < 0x90) return map(code & 0x0f, depth);
    if (code < 0xa0) return list(code & 0x0f, depth);
    if (code < 0xc0) return bytes(Value::text, code & 0x1f);
    if (code >= 0xe0) return integer(static_cast<signed char>(code));
    Value value;
    switch (code) {
      case 0xc0: return value;
      case 0xc2: case 0xc3: value.kind = Value::boolean; value.flag = code == 0xc3; return value;
      case 0xc4: case 0xc5: case 0xc6: return bytes(Value::binary, big(1 << (code - 0xc4)));
      case 0xca: { auto bits = static_cast<std::uint32_t>(big(4)); float one; std::memcpy(&one, &bits, 4); return real(one); }
      case 0xcb: { auto bits = big(8); double one; std::memcpy(&one, &bits, 8); return real(one); }
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return natural(big(1 << (code - 0xcc)));
      case 0xd0: return integer(static_cast<std::int8_t>(big(1)));
      case 0xd1: return integer(static_cast<std::int16_t>(big(2)));
      case 0xd2: return integer(static_cast<std::int32_t>(big(4)));
      case 0xd3: return integer(static_cast<std::int64_t>(big(8)));
      case 0xd9: case 0xda: case 0xdb: return bytes(Value::text, big(1 << (code - 0xd9)));
      case 0xdc: case 0xdd: return list(big(2 << (code - 0xdc)), depth);
      case 0xde: case 0xdf: return map(big(2 << (code - 0xde)), depth);
      default: throw Error("malformed", "the reply holds a msgpack type that the bus does not use");
    }
  }

 private:
  const unsigned char *at_, *end_;
  const unsigned char* take(std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(end_ - at_)) throw Error("malformed", "the reply's header ends too early");
    at_ += count;
    return at_ - count;
  }
  std::uint64_t big(int size) {
    const unsigned char* from = take(static_cast<std::uint64_t>(size));
    std::uint64_t value = 0;
    for (int index = 0; index < size; ++index) value = value << 8 | from[index];
    return value;
  }
  static Value natural(std::uint64_t one) { Value v; v.kind = Value::unsigned_integer; v.natural = one; return v; }
  static Value integer(std::int64_t one) { Value v; v.kind = Value::integer; v.whole = one; return v; }
  static Value real(double one) { Value v; v.kind = Value::real; v.number = one; return v; }
  Value bytes(Value::Kind kind, std::uint64_t count) {
    Value value;
    value.kind = kind;
    value.bytes.assign(reinterpret_cast<const char*>(take(count)), count);
    return value;
  }
  Value list(std::uint64_t count, int depth) {
    Value value;
    value.kind = Value::list;
    for (; count; --count) value.items.push_back(read(depth + 1));
    return value;
  }
  Value map(std::uint64_t count, int depth) {
    Value value;
    value.kind = Value::map;
    for (; count; --count) {
      Value key = read(depth + 1);
      value.entries.emplace_back(key.kind == Value::text ? key.bytes : std::string(), read(depth + 1));
    }
    return value;
  }
};

}  // namespace msgpack

// --- tensors ---------------------------------------------------------------------------------------------------------

namespace detail {

inline std::size_t item_bytes(const std::string& dtype) {
  static const std::map<std::string, std::size_t> sizes = {
      {"bool", 1}, {"int8", 1}, {"uint8", 1}, {"int16", 2}, {"uint16", 2}, {"float16", 2}, {"int32", 4},
      {"uint32", 4}, {"float32", 4}, {"int64", 8}, {"uint64", 8}, {"float64", 8}};
  auto found = sizes.find(dtype);
  if (found == sizes.end()) throw Error("bad_input", "dtype " + dtype + " is unknown");
  return found->second;
}

template <class T>
const char* dtype_name() {
  static_assert(std::is_arithmetic<T>::value, "a tensor holds numbers");
  if (std::is_same<T, bool>::value) return "bool";
  if (std::is_floating_point<T>::value) return sizeof(T) == 4 ? "float32" : "float64";
  const bool is_signed = std::is_signed<T>::value;
  switch (sizeof(T)) {
    case 1: return is_signed ? "int8" : "uint8";
    case 2: return is_signed ? "int16" : "uint16";
    case 4: return is_signed ? "int32" : "uint32";
    default: return is_signed ? "int64" : "uint64";
  }
}

inline std::uint64_t bytes_of(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t total = item_bytes(dtype);
  for (auto extent : shape) {
    if (extent < 0 || (extent && total > (std::uint64_t{1} << 62) / static_cast<std::uint64_t>(extent)))
      throw Error("bad_input", "a shape has a size below 0, or is too large");
    total *= static_cast<std::uint64_t>(extent);
  }
  return total;
}

inline std::int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// Memory that is shared with the server; which part is used for what is said here. Any thread may give back.
class Slab {
 public:
  Slab(void* data, std::size_t size) : data_(static_cast<char*>(data)), size_(size) { holes_[0] = size; }
  ~Slab() { munmap(data_, size_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  bool take(std::size_t bytes, std::size_t* offset) {
    const std::size_t size = rounded(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    // From the end: an offset of four bytes lets the server compare requests in place of decoding them.
    for (auto hole = holes_.rbegin(); hole != holes_.rend(); ++hole) {
      if (hole->second < size) continue;
      const std::size_t begin = hole->first, rest = hole->second - size;
      *offset = begin + rest;
      if (rest)
        hole->second = rest;
      else
        holes_.erase(begin);
      return true;
    }
    return false;
  }
  void give_back(std::size_t offset, std::size_t bytes) {
    std::size_t size = rounded(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = holes_.lower_bound(offset);
    if (after != holes_.end() && after->first == offset + size) {
      size += after->second;
      after = holes_.erase(after);
    }
    if (after != holes_.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    holes_[offset] = size;
  }
  std::size_t free_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::size_t total = 0;
    for (auto& hole : holes_) total += hole.second;
    return total;
  }
  char* at(std::size_t offset) { return data_ + offset; }
  bool holds(const void* data, std::size_t bytes, std::size_t* offset) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data_), place = reinterpret_cast<std::uintptr_t>(data);
    if (place < begin || place - begin > size_ || bytes > size_ - (place - begin)) return false;
    *offset = place - begin;
    return true;
  }
  std::size_t size() const { return size_; }
  static std::size_t rounded(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

 private:
  char* data_;
  std::size_t size_;
  std::map<std::size_t, std::size_t> holes_;  // offset -> bytes, none beside another
  std::mutex mutex_;
};

// A part of a slab, given back by its destructor.
struct Part {
  Part(std::shared_ptr<Slab> slab_, std::size_t offset_, std::size_t bytes_)
      : slab(std::move(slab_)), offset(offset_), bytes(bytes_) {}
  ~Part() { slab->give_back(offset, bytes); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  static std::shared_ptr<Part> of(const std::shared_ptr<Slab>& slab, std::size_t bytes) {
    std::size_t offset;
    if (!slab || !bytes || !slab->take(bytes, &offset)) return nullptr;
    return std::make_shared<Part>(slab, offset, bytes);
  }
  std::shared_ptr<Slab> slab;
  std::size_t offset, bytes;
};

// A received frame, closed by its destructor.
struct Frame {
  Frame() { zmq_msg_init(&message); }
  ~Frame() { zmq_msg_close(&message); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  const void* data() { return zmq_msg_data(&message); }
  std::size_t size() { return zmq_msg_size(&message); }
  zmq_msg_t message;
};

inline std::string default_endpoint() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime && *runtime && access(runtime, F_OK) == 0) return std::string("ipc://") + runtime + "/edgeserve/bus";
  const char* temporary = std::getenv("TMPDIR");
  const passwd* user = getpwuid(getuid());
  return std::string("ipc://") + (temporary && *temporary ? temporary : "/tmp") + "/edgeserve-" +
         (user ? user->pw_name : std::to_string(getuid())) + "/bus";
}

// Throws where another user has made the place of this user's own server. A missing directory is made, so that none can.
inline void check_default_place(const std::string& endpoint) {
  const std::string place = endpoint.substr(6), folder = place.substr(0, place.rfind('/'));
  mkdir(folder.c_str(), 0700);
  struct stat status {};
  for (const std::string& one : {folder, place}) {
    if (lstat(one.c_str(), &status) != 0) {
      if (one == folder) throw Error("bad_input", "endpoint " + endpoint + ": " + folder + ": " + std::strerror(errno));
      continue;
    }
    const bool is_ours = status.st_uid == geteuid() || status.st_uid == 0;
    if (is_ours && (one != folder || S_ISLNK(status.st_mode) || !(status.st_mode & 022))) continue;
    throw Error("bad_input", "endpoint " + endpoint + ": " + one + " is another user's, or others may write to it, and "
                "could pose as the server; remove it, or give the endpoint of a server that you trust");
  }
}

// Connects to the socket beside the bus and takes what the server passes: a descriptor, a token, a size. -1: nothing.
inline int take_memory(const std::string& endpoint, int wait_ms, int* side, std::string* token, std::uint64_t* size) {
  const std::string path = endpoint.substr(6) + ".memory";
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return -1;
  *side = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*side < 0) return -1;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (connect(*side, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return -1;
  pollfd ready{*side, POLLIN, 0};
  if (::poll(&ready, 1, wait_ms) != 1) return -1;
  char said[24];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec part{said, sizeof(said)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(*side, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(said))) return -1;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return -1;
  int file;
  std::memcpy(&file, CMSG_DATA(head), sizeof(file));
  token->assign(said, 16);
  *size = 0;
  for (int index = 7; index >= 0; --index) *size = *size << 8 | static_cast<unsigned char>(said[16 + index]);
  return file;
}

}  // namespace detail

template <class T>
Tensor Tensor::of(const T* data, std::vector<std::int64_t> shape) {
  return raw(detail::dtype_name<T>(), data, std::move(shape));
}

inline Tensor Tensor::raw(std::string dtype, const void* data, std::vector<std::int64_t> shape) {
  Tensor tensor;
  tensor.bytes = static_cast<std::size_t>(detail::bytes_of(dtype, shape));
  tensor.dtype = std::move(dtype);
  tensor.shape = std::move(shape);
  tensor.data = data;
  return tensor;
}

template <class T>
const T* Tensor::as() const {
  if (dtype != detail::dtype_name<T>())
    throw Error("bad_input", "the tensor holds " + dtype + ", not " + detail::dtype_name<T>());
  return static_cast<const T*>(data);
}

// Each text has its length in four bytes, little-endian, before its UTF-8.
inline Tensor Tensor::texts(const std::vector<std::string>& words, std::vector<std::int64_t> shape) {
  auto packed = std::make_shared<std::string>();
  for (auto& word : words) {
    for (int shift = 0; shift < 32; shift += 8) packed->push_back(static_cast<char>(word.size() >> shift & 0xff));
    *packed += word;
  }
  Tensor tensor;
  tensor.dtype = "text";
  tensor.shape = std::move(shape);
  tensor.data = packed->data();
  tensor.bytes = packed->size();
  tensor.owner = packed;
  if (tensor.size() != words.size())
    throw Error("bad_input", "the shape needs " + std::to_string(tensor.size()) + " texts, the vector has " +
                                 std::to_string(words.size()));
  return tensor;
}

inline std::vector<std::string> Tensor::as_texts() const {
  if (dtype != "text") throw Error("bad_input", "the tensor holds " + dtype + ", not texts");
  std::vector<std::string> words;
  auto* at = static_cast<const unsigned char*>(data);
  std::size_t left = bytes;
  while (left >= 4) {
    const std::size_t length = at[0] | at[1] << 8 | at[2] << 16 | static_cast<std::size_t>(at[3]) << 24;
    if (length > left - 4) break;
    words.emplace_back(reinterpret_cast<const char*>(at + 4), length);
    at += 4 + length, left -= 4 + length;
  }
  if (left || words.size() != size()) throw Error("malformed", "the tensor's texts are not those of its shape");
  return words;
}

// --- the client ------------------------------------------------------------------------------------------------------

struct ClientOptions {
  std::string name;                    // what the server calls this client, for its weight among clients
  std::string server_key;              // the server's public CURVE key, 40 characters
  std::string public_key, secret_key;  // this client's own, where the server lets only some in
  bool shared_memory = true;           // large tensors go through memory, where the server gives some (ipc)
  int shared_memory_wait_ms = 1000;    // how long the first large request waits for it, once per connection
  int timeout_ms = 30000;              // of infer() and the questions
};

// What poll() brings: an answer, a piece of one (`answer` holds its outputs), or the error that a request ended with.
struct Event {
  enum Kind { completed, piece, failed } kind = failed;
  std::uint64_t id = 0;  // as submit() returned it
  Answer answer;
  std::shared_ptr<Error> error;
};

class Client {
 public:
  explicit Client(std::string endpoint = "", ClientOptions options = {})
      : endpoint_(endpoint.empty() ? detail::default_endpoint() : std::move(endpoint)), options_(std::move(options)) {
    context_ = zmq_ctx_new();
    if (!context_) throw Error("closed", "libzmq has no context: " + std::string(zmq_strerror(zmq_errno())));
  }
  ~Client() {
    if (socket_) send(plain("bye"), {});
    disconnect(200);
    zmq_ctx_term(context_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Ask an app and wait. Throws Error. Other requests go on meanwhile: poll() brings what they brought.
  Answer infer(const std::string& app, const Inputs& inputs, const Options& options = {}, int timeout_ms = -1) {
    Options whole = options;
    whole.pieces = false;
    const std::uint64_t id = submit(app, inputs, whole);
    Event event = wait_for(id, timeout_ms < 0 ? options_.timeout_ms : timeout_ms, "app " + app);
    if (event.error) throw *event.error;
    return std::move(event.answer);
  }

  // Ask an app for an answer in pieces: `take` gets the outputs of each, in order. Returns the whole answer.
  template <class Take>
  Answer stream(const std::string& app, const Inputs& inputs, Take take, const Options& options = {},
                int timeout_ms = -1) {
    Options parts = options;
    parts.pieces = true;
    const std::uint64_t id = submit(app, inputs, parts);
    for (;;) {
      Event event = wait_for(id, timeout_ms < 0 ? options_.timeout_ms : timeout_ms, "app " + app);
      if (event.error) throw *event.error;
      if (event.kind == Event::completed) return std::move(event.answer);
      try {
        take(event.answer);
      } catch (...) {
        cancel(id);
        throw;
      }
    }
  }

  // Memory for an input, to be written and sent: shared with the server where it gives some, so that nothing is copied.
  // It must not change until the answer has come; then it may be written and sent again.
  Buffer buffer(const std::string& dtype, std::vector<std::int64_t> shape) {
    Buffer made;
    made.tensor = Tensor::raw(dtype, nullptr, std::move(shape));
    const std::size_t bytes = made.tensor.bytes;
    if (bytes >= kLargeBytes) {
      connect();
      wish_for_memory();
    }
    auto part = bytes >= kLargeBytes ? detail::Part::of(slab_, bytes) : nullptr;
    if (part) {
      made.data = slab_->at(part->offset);
      made.tensor.owner = part;
    } else {
      std::shared_ptr<char> own(new char[bytes + 1], std::default_delete<char[]>());
      made.data = own.get();
      made.tensor.owner = own;
    }
    made.tensor.data = made.data;
    return made;
  }

  // Send a request; its number. The inputs are copied, but for those of `buffer` and arrays of answers.
  std::uint64_t submit(const std::string& app, const Inputs& inputs, const Options& options = {}) {
    connect();
    const std::uint64_t id = ++last_id_;
    Lease lease;
    std::vector<const Tensor*> frames;
    const std::string header = request(id, app, inputs, options, &lease, &frames);
    if (waiting_.empty()) heard_ns_ = said_ns_ = detail::now_ns();
    send(header, frames);
    waiting_[id] = app;
    if (!lease.parts.empty() || lease.room) leases_[id] = std::move(lease);
    return id;
  }

  // The next event, waiting for one at most so long; false when none came.
  bool poll(Event* event, int timeout_ms) {
    const std::int64_t until_ns = detail::now_ns() + std::int64_t{1000000} * timeout_ms;
    while (events_.empty()) {
      receive();
      if (!events_.empty()) break;
      look_after();
      const std::int64_t left_ms = (until_ns - detail::now_ns()) / 1000000;
      if (!events_.empty()) break;
      if (left_ms <= 0 && detail::now_ns() >= until_ns) return false;
      if (!socket_) return false;  // nothing is in flight
      zmq_pollitem_t items[2] = {{socket_, 0, ZMQ_POLLIN, 0}, {monitor_, 0, ZMQ_POLLIN, 0}};
      zmq_poll(items, 2, static_cast<long>(std::max<std::int64_t>(1, std::min(left_ms, kBeatMs / 2))));
    }
    *event = std::move(events_.front());
    events_.pop_front();
    return true;
  }

  // Nobody wants the answer any more. The request still ends once: poll() brings the error `cancelled`, or its answer.
  void cancel(std::uint64_t id) {
    if (socket_ && waiting_.count(id)) send(plain("cancel", id), {});
  }

  // Requests without a reply.
  std::size_t in_flight() const { return waiting_.size(); }

  // A question about the server: apps, models, stats, health.
  msgpack::Value ask(const std::string& kind, int timeout_ms = -1) {
    connect();
    const std::uint64_t id = ++last_id_;
    if (waiting_.empty()) heard_ns_ = said_ns_ = detail::now_ns();
    waiting_[id] = "";
    send(plain(kind, id), {});
    Event event = wait_for(id, timeout_ms < 0 ? options_.timeout_ms : timeout_ms, kind);
    if (event.error) throw *event.error;
    return std::move(info_);
  }

  // Whether large tensors go through shared memory by now, and how much of it is free.
  bool has_shared_memory() const { return slab_ != nullptr; }
  std::size_t shared_bytes_free() const { return slab_ ? slab_->free_bytes() : 0; }
  std::size_t shared_bytes() const { return slab_ ? slab_->size() : 0; }

 private:
  struct Lease {
    std::vector<std::shared_ptr<detail::Part>> parts;  // where the large inputs lie; null: in frames
    std::shared_ptr<detail::Part> room;                // where the answer may be put
    std::vector<std::shared_ptr<const void>> held;     // inputs that lie in the memory themselves
  };
  static constexpr std::int64_t kBeatMs = 1000, kSilenceMs = 10000;
  static constexpr int kLastMs = 100;  // behind a time-out, for what a language model has written by then
  static constexpr std::size_t kFramesMax = 66;

  std::string endpoint_;
  ClientOptions options_;
  void *context_ = nullptr, *socket_ = nullptr, *monitor_ = nullptr;
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, std::string> waiting_;  // id -> app
  std::map<std::uint64_t, Lease> leases_;
  std::map<std::string, std::size_t> room_bytes_;  // by app, what its last answer needed
  std::deque<Event> events_;
  msgpack::Value info_;
  std::int64_t heard_ns_ = 0, said_ns_ = 0;
  std::shared_ptr<detail::Slab> slab_, offered_;
  bool may_share_ = false;

  void connect() {
    if (socket_) return;
    if (endpoint_ == detail::default_endpoint()) detail::check_default_place(endpoint_);
    socket_ = zmq_socket(context_, ZMQ_DEALER);
    if (!socket_) throw Error("closed", "libzmq has no socket: " + std::string(zmq_strerror(zmq_errno())));
    const int zero = 0, interval = 20;
    zmq_setsockopt(socket_, ZMQ_LINGER, &zero, sizeof(zero));
    zmq_setsockopt(socket_, ZMQ_SNDHWM, &zero, sizeof(zero));
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &zero, sizeof(zero));
    zmq_setsockopt(socket_, ZMQ_RECONNECT_IVL, &interval, sizeof(interval));
    if (!options_.server_key.empty()) use_keys();
    const std::string place = "inproc://edgeserve-monitor-" + std::to_string(++last_id_);
    zmq_socket_monitor(socket_, place.c_str(), ZMQ_EVENT_DISCONNECTED);
    monitor_ = zmq_socket(context_, ZMQ_PAIR);
    zmq_setsockopt(monitor_, ZMQ_LINGER, &zero, sizeof(zero));
    if (zmq_connect(monitor_, place.c_str()) != 0 || zmq_connect(socket_, endpoint_.c_str()) != 0) {
      const std::string why = zmq_strerror(zmq_errno());
      disconnect(0);
      throw Error("bad_input", "endpoint " + endpoint_ + ": " + why);
    }
    may_share_ = options_.shared_memory && endpoint_.compare(0, 6, "ipc://") == 0;
    heard_ns_ = said_ns_ = detail::now_ns();
  }

  void use_keys() {
    char own_public[41], own_secret[41];
    if (options_.secret_key.empty()) {
      if (zmq_curve_keypair(own_public, own_secret) != 0) throw Error("bad_input", "this libzmq was built without CURVE");
    } else {
      std::strncpy(own_public, options_.public_key.c_str(), 41);
      std::strncpy(own_secret, options_.secret_key.c_str(), 41);
    }
    own_public[40] = own_secret[40] = 0;
    if (zmq_setsockopt(socket_, ZMQ_CURVE_SERVERKEY, options_.server_key.c_str(), 41) != 0 ||
        zmq_setsockopt(socket_, ZMQ_CURVE_PUBLICKEY, own_public, 41) != 0 ||
        zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, own_secret, 41) != 0)
      throw Error("bad_input", "the CURVE keys are not accepted: expected 40 characters each");
  }

  void disconnect(int linger) {
    if (!socket_) return;
    zmq_socket_monitor(socket_, nullptr, 0);
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_close(socket_);
    if (monitor_) zmq_close(monitor_);
    socket_ = monitor_ = nullptr;
    slab_ = offered_ = nullptr;
    leases_.clear();
  }

  // The connection is over: requests in flight have no answer and are not sent again.
  void lose(const std::string& why) {
    disconnect(0);
    for (auto& entry : waiting_) {
      Event event;
      event.id = entry.first;
      event.error = std::make_shared<Error>("server_gone", "the server at " + endpoint_ + " is gone: " + why);
      events_.push_back(std::move(event));
    }
    waiting_.clear();
  }

  static std::string plain(const std::string& kind) {
    msgpack::Writer writer;
    writer.out = "\x01";
    writer.map(1);
    writer.text("kind");
    writer.text(kind);
    return writer.out;
  }
  static std::string plain(const std::string& kind, std::uint64_t id, bool keeps = false) {
    msgpack::Writer writer;
    writer.out = "\x01";
    writer.map(keeps ? 3 : 2);
    if (keeps) {
      writer.text("keeps");
      writer.boolean(true);
    }
    writer.text("kind");
    writer.text(kind);
    writer.text("id");
    writer.natural(id);
    return writer.out;
  }

  // The header of a request. Large tensors are copied into shared memory, the others become frames.
  std::string request(std::uint64_t id, const std::string& app, const Inputs& inputs, const Options& options, Lease* lease,
                      std::vector<const Tensor*>* frames) {
    std::size_t tensors = 0;
    for (auto& entry : inputs) {
      tensors += entry.second.is_text ? 0 : 1;
      if (!entry.second.is_text && entry.second.tensor.bytes >= kLargeBytes) wish_for_memory();
    }
    for (auto& entry : inputs) {
      const std::size_t bytes = entry.second.is_text ? 0 : entry.second.tensor.bytes;
      if (bytes < kLargeBytes) continue;
      std::size_t offset;
      const bool is_there = slab_ && slab_->holds(entry.second.tensor.data, bytes, &offset);
      if (is_there) lease->held.push_back(entry.second.tensor.owner);
      lease->parts.push_back(is_there ? nullptr : detail::Part::of(slab_, detail::Slab::rounded(bytes)));
    }
    auto known = room_bytes_.find(app);
    if (known != room_bytes_.end() && known->second) {
      wish_for_memory();
      lease->room = room_for(*lease, known->second);
    }
    const std::size_t texts = inputs.size() - tensors;
    msgpack::Writer writer;
    writer.out = "\x01";
    writer.map(4 + (tensors ? 1 : 0) + (texts ? 1 : 0) + (lease->room ? 1 : 0) + options_count(options));
    writer.text("kind"), writer.text("infer");
    writer.text("id"), writer.natural(id);
    writer.text("app"), writer.text(app);
    writer.text("sent_ns"), writer.natural(static_cast<std::uint64_t>(detail::now_ns()));
    if (tensors) write_table(&writer, tensors, inputs, lease, frames);
    if (texts) {
      writer.text("texts"), writer.map(texts);
      for (auto& entry : inputs)
        if (entry.second.is_text) writer.text(entry.first), writer.text(entry.second.text);
    }
    if (lease->room) {
      writer.text("room"), writer.list(2);
      writer.natural(lease->room->offset), writer.natural(lease->room->bytes);
    }
    write_options(&writer, options);
    return writer.out;
  }

  // Where the answer may be put: in the place of an input, which the server has copied by then, or in one of its own.
  std::shared_ptr<detail::Part> room_for(const Lease& lease, std::size_t bytes) {
    for (auto& part : lease.parts)
      if (part && part->bytes >= bytes && part->bytes <= 2 * bytes) return part;
    return detail::Part::of(slab_, bytes);
  }

  void write_table(msgpack::Writer* writer, std::size_t count, const Inputs& inputs, Lease* lease,
                   std::vector<const Tensor*>* frames) {
    writer->text("tensors"), writer->list(count);
    std::size_t taken = 0;
    for (auto& entry : inputs) {
      if (entry.second.is_text) continue;
      const Tensor& tensor = entry.second.tensor;
      auto part = tensor.bytes >= kLargeBytes ? lease->parts[taken++] : nullptr;
      std::size_t offset = part ? part->offset : 0;
      const bool is_there = !part && tensor.bytes >= kLargeBytes && slab_ && slab_->holds(tensor.data, tensor.bytes, &offset);
      writer->list(part || is_there ? 5 : 3), writer->text(entry.first), writer->text(tensor.dtype), writer->list(tensor.shape.size());
      for (auto extent : tensor.shape) writer->natural(static_cast<std::uint64_t>(extent));
      if (part) std::memcpy(slab_->at(offset), tensor.data, tensor.bytes);
      if (part || is_there) {
        writer->natural(offset), writer->natural(tensor.bytes);
      } else {
        frames->push_back(&tensor);
      }
    }
  }

  std::size_t options_count(const Options& options) const {
    return (std::isnan(options.slo_ms) ? 0 : 1) + (std::isnan(options.value) ? 0 : 1) +
           (std::isnan(options.quality_min) ? 0 : 1) + (options.priority_class.empty() ? 0 : 1) + (options.on_late.empty() ? 0 : 1) +
           (options.stream.empty() ? 0 : 1) + (options.traceparent.empty() ? 0 : 1) + (options.hints.empty() ? 0 : 1) + (options.pieces ? 1 : 0) + (options.reset ? 1 : 0) +
           (options_.name.empty() ? 0 : 1);
  }
  void write_options(msgpack::Writer* writer, const Options& options) const {
    const std::pair<const char*, double> numbers[] = {
        {"slo_ms", options.slo_ms}, {"value", options.value}, {"quality_min", options.quality_min}};
    for (auto& one : numbers)
      if (!std::isnan(one.second)) writer->text(one.first), writer->real(one.second);
    const std::pair<const char*, const std::string*> words[] = {
        {"class", &options.priority_class},         {"on_late", &options.on_late},
        {"stream", &options.stream},       {"traceparent", &options.traceparent},
        {"client", &options_.name}};
    for (auto& one : words)
      if (!one.second->empty()) writer->text(one.first), writer->text(*one.second);
    if (!options.hints.empty()) {
      writer->text("hints"), writer->map(options.hints.size());
      for (auto& hint : options.hints) writer->text(hint.first), writer->real(hint.second);
    }
    if (options.reset) writer->text("reset"), writer->boolean(true);
    if (options.pieces) writer->text("pieces"), writer->boolean(true);
  }

  void send(const std::string& header, const std::vector<const Tensor*>& frames) {
    if (zmq_send(socket_, header.data(), header.size(), ZMQ_DONTWAIT | (frames.empty() ? 0 : ZMQ_SNDMORE)) < 0)
      throw Error("server_gone", "the request cannot be sent: " + std::string(zmq_strerror(zmq_errno())));
    for (std::size_t index = 0; index < frames.size(); ++index)
      zmq_send(socket_, frames[index]->data, frames[index]->bytes,
               ZMQ_DONTWAIT | (index + 1 < frames.size() ? ZMQ_SNDMORE : 0));
  }

  // Ask the server for memory, once per connection; without an answer in time, frames do.
  void wish_for_memory() {
    if (!may_share_) return;
    may_share_ = false;
    int side = -1;
    std::string token;
    std::uint64_t size = 0;
    const int file = detail::take_memory(endpoint_, options_.shared_memory_wait_ms, &side, &token, &size);
    if (file >= 0) {
      void* data = fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK
                       ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
      close(file);
      if (data != MAP_FAILED) {
        offered_ = std::make_shared<detail::Slab>(data, size);
        claim(token);
      }
    }
    if (side >= 0) close(side);
  }
  void claim(const std::string& token) {
    msgpack::Writer writer;
    writer.out = "\x01";
    writer.map(3);
    writer.text("kind"), writer.text("memory");
    writer.text("id"), writer.binary("memory");
    writer.text("token"), writer.binary(token);
    send(writer.out, {});
    const std::int64_t until_ns = detail::now_ns() + std::int64_t{1000000} * options_.shared_memory_wait_ms;
    while (offered_ && socket_ && detail::now_ns() < until_ns) {  // the reply makes it slab_, or drops it
      zmq_pollitem_t item = {socket_, 0, ZMQ_POLLIN, 0};
      zmq_poll(&item, 1, 10);
      receive();
    }
    offered_ = nullptr;
  }

  void receive() {
    while (socket_) {
      std::vector<std::shared_ptr<detail::Frame>> frames;
      for (int more = 1; more;) {
        auto frame = std::make_shared<detail::Frame>();
        if (zmq_msg_recv(&frame->message, socket_, ZMQ_DONTWAIT) < 0) return;
        more = zmq_msg_more(&frame->message);
        if (frames.size() < kFramesMax) frames.push_back(std::move(frame));
      }
      heard_ns_ = detail::now_ns();
      try {
        take_reply(frames);
      } catch (const Error& error) {
        lose(std::string("it answered with something that is no reply: ") + error.what());
      }
    }
  }

  void take_reply(const std::vector<std::shared_ptr<detail::Frame>>& frames) {
    const auto* bytes = static_cast<const char*>(frames[0]->data());
    if (frames[0]->size() < 2 || bytes[0] != 1) throw Error("malformed", "the reply speaks another version");
    const msgpack::Value header = msgpack::Reader(bytes + 1, frames[0]->size() - 1).read();
    const msgpack::Value *kind = header.find("kind"), *key = header.find("id");
    if (!kind) throw Error("malformed", "the reply says no kind");
    if (kind->bytes == "beat") return;
    if (key && key->kind == msgpack::Value::binary) {
      if (kind->bytes == "info") slab_ = offered_;
      offered_ = nullptr;
      return;
    }
    if (!key || key->kind == msgpack::Value::nil) {
      const msgpack::Value* message = header.find("message");
      throw Error("malformed", message ? message->as_text() : "a reply without an id");
    }
    const std::uint64_t id = key->as_natural("id");
    Event event;
    event.id = id;
    if (kind->bytes == "error") {
      event.error = read_error(header);
    } else if (kind->bytes == "info") {
      event.kind = Event::completed;
      if (waiting_.count(id)) info_ = header.find("info") ? *header.find("info") : msgpack::Value();
    } else {
      event.kind = kind->bytes == "piece" ? Event::piece : Event::completed;
      auto lease = leases_.find(id);
      event.answer = read_answer(header, frames, lease == leases_.end() ? nullptr : lease->second.room);
    }
    auto waits = waiting_.find(id);
    const bool wanted = waits != waiting_.end();
    if (event.kind == Event::completed && wanted && !waits->second.empty()) learn(waits->second, event.answer);
    if (event.kind != Event::piece) {
      leases_.erase(id);
      if (wanted) waiting_.erase(waits);
    }
    if (wanted) events_.push_back(std::move(event));
  }

  void learn(const std::string& app, const Answer& answer) {
    std::size_t total = 0;
    for (auto& output : answer.outputs)
      if (output.second.bytes >= kLargeBytes) total += detail::Slab::rounded(output.second.bytes);
    room_bytes_[app] = total;
  }

  static std::shared_ptr<Error> read_error(const msgpack::Value& header) {
    auto text = [&header](const char* name) {
      const msgpack::Value* found = header.find(name);
      return found ? found->as_text() : std::string();
    };
    auto number = [&header](const char* name) {
      const msgpack::Value* found = header.find(name);
      return found && found->is_number() ? found->as_double() : kUnset;
    };
    auto error = std::make_shared<Error>(text("code"), text("message"));
    error->reason = text("reason");
    error->lane = text("lane");
    if (const msgpack::Value* found = header.find("request_id")) error->request_id = found->as_natural("request_id");
    error->expected_ms = number("expected_ms");
    error->wait_ms = number("wait_ms");
    error->left_ms = number("left_ms");
    error->slo_ms_min = number("slo_ms_min");
    return error;
  }

  static Answer read_answer(const msgpack::Value& header, const std::vector<std::shared_ptr<detail::Frame>>& frames,
                            const std::shared_ptr<detail::Part>& room) {
    Answer answer;
    std::size_t next = 1;
    if (const msgpack::Value* table = header.find("tensors"))
      for (auto& entry : table->items) {
        if (entry.items.size() != 3 && entry.items.size() != 5) throw Error("malformed", "an entry of the table is none");
        answer.outputs.emplace(entry.items[0].as_text(), read_tensor(entry, frames, &next, room));
      }
    if (next != frames.size()) throw Error("malformed", "the reply's frames are not those of its table");
    if (const msgpack::Value* texts = header.find("texts"))
      for (auto& entry : texts->entries) {
        auto& words = answer.texts[entry.first];
        if (entry.second.kind == msgpack::Value::text) words.push_back(entry.second.bytes);
        for (auto& item : entry.second.items) words.push_back(item.as_text());
      }
    if (const msgpack::Value* found = header.find("outcome")) answer.outcome = found->as_text();
    if (const msgpack::Value* found = header.find("reason")) answer.reason = found->as_text();
    if (const msgpack::Value* found = header.find("late")) answer.late = found->flag;
    if (const msgpack::Value* found = header.find("request_id")) answer.request_id = found->as_natural("request_id");
    if (const msgpack::Value* found = header.find("total_ns")) answer.total_ms = found->as_double() / 1e6;
    if (const msgpack::Value* found = header.find("quality")) answer.quality = found->as_double();
    if (const msgpack::Value* found = header.find("variant")) answer.variant = found->as_text();
    if (const msgpack::Value* found = header.find("breakdown_ns"))
      for (auto& item : found->items) answer.breakdown_ms.push_back(item.as_double() / 1e6);
    if (const msgpack::Value* found = header.find("branches"))
      for (auto& item : found->items) answer.branches.push_back(item.as_text());
    return answer;
  }

  static Tensor read_tensor(const msgpack::Value& entry, const std::vector<std::shared_ptr<detail::Frame>>& frames,
                            std::size_t* next, const std::shared_ptr<detail::Part>& room) {
    std::vector<std::int64_t> shape;
    for (auto& extent : entry.items[2].items) shape.push_back(static_cast<std::int64_t>(extent.as_natural("shape")));
    Tensor tensor;
    if (entry.items[1].as_text() == "text") {
      tensor.dtype = "text", tensor.shape = std::move(shape);
      if (*next < frames.size()) tensor.bytes = frames[*next]->size();
    } else {
      tensor = Tensor::raw(entry.items[1].as_text(), nullptr, std::move(shape));
    }
    if (entry.items.size() == 5) {
      const std::uint64_t offset = entry.items[3].as_natural("offset"), bytes = entry.items[4].as_natural("bytes");
      if (!room || bytes != tensor.bytes || offset < room->offset || bytes > room->bytes ||
          offset - room->offset > room->bytes - bytes)
        throw Error("malformed", "a tensor lies outside of the room for its answer");
      tensor.data = room->slab->at(offset);
      tensor.owner = room;
      return tensor;
    }
    if (*next >= frames.size() || frames[*next]->size() != tensor.bytes)
      throw Error("malformed", "a tensor's frame has another size than its shape");
    const std::shared_ptr<detail::Frame>& frame = frames[(*next)++];
    if (reinterpret_cast<std::uintptr_t>(frame->data()) % 16 == 0) {
      tensor.data = frame->data();
      tensor.owner = frame;
    } else {  // libzmq does not align what is small
      auto copy = std::shared_ptr<char>(new char[tensor.bytes + 1], std::default_delete<char[]>());
      std::memcpy(copy.get(), frame->data(), tensor.bytes);
      tensor.data = copy.get();
      tensor.owner = copy;
    }
    return tensor;
  }

  // Heartbeats, and whether the server still lives. After receive(): what it has said counts before its silence.
  void look_after() {
    if (!socket_) return;
    char event[256];
    for (int size; (size = zmq_recv(monitor_, event, sizeof(event), ZMQ_DONTWAIT)) >= 0;) {
      std::uint16_t kind = 0;
      if (size >= 2) std::memcpy(&kind, event, 2);
      zmq_recv(monitor_, event, sizeof(event), ZMQ_DONTWAIT);  // where: the second frame
      if (kind == ZMQ_EVENT_DISCONNECTED) return lose("the connection closed");
    }
    if (waiting_.empty()) return;
    const std::int64_t now_ns = detail::now_ns();
    if (now_ns - said_ns_ < kBeatMs * 1000000) return;
    if (now_ns - said_ns_ > 3 * kBeatMs * 1000000) heard_ns_ = now_ns;  // nobody called poll(): it had no chance
    said_ns_ = now_ns;
    if (now_ns - heard_ns_ > kSilenceMs * 1000000) return lose("it said nothing for 10 s");
    send(plain("beat"), {});
  }

  // The end of a request, within so long; else what a language model has written of it by then.
  Event wait_for(std::uint64_t id, int timeout_ms, const std::string& what) {
    Event event;
    if (comes(id, timeout_ms, &event)) return event;
    if (socket_ && waiting_.count(id)) send(plain("cancel", id, true), {});
    if (comes(id, kLastMs, &event) && !(event.error && event.error->code == "cancelled")) return event;
    cancel(id);
    waiting_.erase(id);
    Event late;
    late.id = id;
    late.error = std::make_shared<Error>("timed_out", what + ": no answer within " + std::to_string(timeout_ms) +
                                                          " ms; the request was cancelled");
    return late;
  }

  // Whether the next event of a request comes within so long. Those of others wait.
  bool comes(std::uint64_t id, int timeout_ms, Event* event) {
    const std::int64_t until_ns = detail::now_ns() + std::int64_t{1000000} * timeout_ms;
    std::deque<Event> others;
    bool found = false;
    for (;;) {
      const std::int64_t left_ms = std::max<std::int64_t>(0, (until_ns - detail::now_ns() + 999999) / 1000000);
      if (!poll(event, static_cast<int>(left_ms))) break;
      if (event->id == id) {
        found = true;
        break;
      }
      others.push_back(std::move(*event));
    }
    for (; !others.empty(); others.pop_back()) events_.push_front(std::move(others.back()));
    return found;
  }
};

}  // namespace edgeserve

#endif
