// Reads records from the bytes of a trace, which are msgpack. Anybody may have made them: each byte is checked, and what
// is no record is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>

namespace order {

// The bytes are no records.
struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The records contradict each other.
struct Inconsistent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Reader {
 public:
  Reader() = default;
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool done() const { return at_ == end_; }

  // Throws if a record has another number of fields.
  static void has(size_t count, size_t least, size_t most) {
    if (count < least || count > most) shape();
  }
  size_t array() { return sized(kArray); }
  size_t map() { return sized(kMap); }
  int64_t integer() {
    if (at_ != end_ && static_cast<uint8_t>(*at_) < 0x80) return *at_++;  // the most frequent
    const Head next = head();
    if (next.kind != kInteger) throw Damaged("a field is no integer of 64 bits");
    return static_cast<int64_t>(next.value);
  }
  bool truth() { return integer() != 0; }
  std::string_view text() {
    const Head next = head();
    return next.kind == kText ? take(next.value) : throw Damaged("a field is no text");
  }
  // The bytes that encode the next value, whatever it is.
  std::string_view raw() {
    const char* begin = at_;
    for (uint64_t left = 1; left > 0; --left) {
      const Head next = head();
      if (next.kind == kArray || next.kind == kMap) left += next.value << (next.kind == kMap);
      if (next.kind == kText || next.kind == kBytes) take(next.value);
    }
    return {begin, static_cast<size_t>(at_ - begin)};
  }

 private:
  enum Kind { kInteger, kText, kBytes, kArray, kMap };
  struct Head {
    Kind kind;
    uint64_t value;  // a number, or how many bytes or values come next
  };
  const char *at_ = nullptr, *end_ = nullptr;

  [[noreturn]] static size_t shape() { throw Damaged("a record has another shape"); }
  size_t sized(Kind kind) {
    const Head next = head();
    return next.kind == kind ? next.value : shape();
  }
  std::string_view take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) throw Damaged("it ends within a record");
    const std::string_view taken(at_, size);
    at_ += size;
    return taken;
  }
  uint64_t number(int size) {
    const char* bytes = take(static_cast<uint64_t>(size)).data();
    uint64_t value = 0;
    for (int at = 0; at < size; ++at) value = value << 8 | static_cast<uint8_t>(bytes[at]);
    return value;
  }
  static uint64_t negative(uint64_t value, int size) {  // a number of so many bytes, which may be negative
    return static_cast<uint64_t>(static_cast<int64_t>(value << (64 - 8 * size)) >> (64 - 8 * size));
  }
  Head head() {
    const int first = static_cast<uint8_t>(take(1)[0]);
    const auto size = [first](int base) { return 1 << (first - base); };
    if (first < 0x80 || first >= 0xe0) return {kInteger, negative(static_cast<uint64_t>(first), 1)};
    if (first < 0x90) return {kMap, first & 0x0fu};
    if (first < 0xa0) return {kArray, first & 0x0fu};
    if (first < 0xc0) return {kText, first & 0x1fu};
    switch (first) {
      case 0xc0: return {kBytes, 0};  // none
      case 0xc2: case 0xc3: return {kInteger, first & 1u};  // a truth value is a number in Python
      case 0xc4: case 0xc5: case 0xc6: return {kBytes, number(size(0xc4))};
      case 0xc7: case 0xc8: case 0xc9: return {kBytes, number(size(0xc7)) + 1};  // and the type of an extension
      case 0xca: case 0xcb: return {kBytes, uint64_t{4} << (first - 0xca)};
      case 0xcc: case 0xcd: case 0xce: return {kInteger, number(size(0xcc))};
      case 0xcf: {
        const uint64_t value = number(8);
        return value > INT64_MAX ? Head{kBytes, 0} : Head{kInteger, value};
      }
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return {kInteger, negative(number(size(0xd0)), size(0xd0))};
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return {kBytes, 1 + static_cast<uint64_t>(size(0xd4))};
      case 0xd9: case 0xda: case 0xdb: return {kText, number(size(0xd9))};
      case 0xdc: case 0xdd: return {kArray, number(2 * size(0xdc))};
      case 0xde: case 0xdf: return {kMap, number(2 * size(0xde))};
    }
    shape();
  }
};

// Texts, each once, and their numbers. A stack is one too: the bytes that encode its frames.
class Texts {
 public:
  int64_t of(std::string_view text) {
    const auto known = numbers_.find(text);
    if (known != numbers_.end()) return known->second;
    texts_.emplace_back(text);
    return numbers_[texts_.back()] = static_cast<int64_t>(texts_.size()) - 1;
  }
  const std::string& operator[](int64_t number) const { return texts_[static_cast<size_t>(number)]; }

 private:
  std::deque<std::string> texts_;  // never moves one
  std::unordered_map<std::string_view, int64_t> numbers_;
};

}  // namespace order
