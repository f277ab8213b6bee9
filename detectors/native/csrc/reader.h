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
  size_t array() {
    const uint8_t head = byte();
    if ((head & 0xf0) == 0x90) return head & 0x0f;
    if (head == 0xdc) return number<uint16_t>();
    return head == 0xdd ? number<uint32_t>() : shape();
  }
  size_t map() {
    const uint8_t head = byte();
    if ((head & 0xf0) == 0x80) return head & 0x0f;
    if (head == 0xde) return number<uint16_t>();
    return head == 0xdf ? number<uint32_t>() : shape();
  }
  int64_t integer() {
    const uint8_t head = byte();
    if (head < 0x80) return head;
    if (head >= 0xe0) return static_cast<int8_t>(head);
    switch (head) {
      case 0xc2: case 0xc3: return head & 1;  // a truth value is a number in Python
      case 0xcc: return number<uint8_t>();
      case 0xcd: return number<uint16_t>();
      case 0xce: return number<uint32_t>();
      case 0xd0: return static_cast<int8_t>(number<uint8_t>());
      case 0xd1: return static_cast<int16_t>(number<uint16_t>());
      case 0xd2: return static_cast<int32_t>(number<uint32_t>());
      case 0xd3: return static_cast<int64_t>(number<uint64_t>());
      case 0xcf:
        if (const uint64_t value = number<uint64_t>(); value <= INT64_MAX) return static_cast<int64_t>(value);
    }
    throw Damaged("a field is no integer of 64 bits");
  }
  bool truth() { return integer() != 0; }
  std::string_view text() {
    const uint8_t head = byte();
    if ((head & 0xe0) == 0xa0) return take(head & 0x1f);
    if (head == 0xd9) return take(number<uint8_t>());
    if (head == 0xda) return take(number<uint16_t>());
    return head == 0xdb ? take(number<uint32_t>()) : throw Damaged("a field is no text");
  }
  // The bytes that encode the next value, whatever it is.
  std::string_view raw() {
    const char* begin = at_;
    for (uint64_t left = 1; left > 0; --left) left += pass();
    return {begin, static_cast<size_t>(at_ - begin)};
  }

 private:
  const char *at_ = nullptr, *end_ = nullptr;

  [[noreturn]] static size_t shape() { throw Damaged("a record has another shape"); }

  std::string_view take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) throw Damaged("it ends within a record");
    const std::string_view taken(at_, size);
    at_ += size;
    return taken;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  template <typename Unsigned>
  Unsigned number() {
    uint64_t value = 0;
    for (const char each : take(sizeof(Unsigned))) value = value << 8 | static_cast<uint8_t>(each);
    return static_cast<Unsigned>(value);
  }

  // Passes one value without the values in it; returns how many those are.
  uint64_t pass() {
    const uint8_t head = byte();
    if (head < 0x80 || head >= 0xe0) return 0;
    if (head < 0x90) return 2 * (head & 0x0f);
    if (head < 0xa0) return head & 0x0f;
    if (head < 0xc0) return take(head & 0x1f), 0;
    switch (head) {
      case 0xc0: case 0xc2: case 0xc3: return 0;
      case 0xc4: case 0xd9: return take(number<uint8_t>()), 0;
      case 0xc5: case 0xda: return take(number<uint16_t>()), 0;
      case 0xc6: case 0xdb: return take(number<uint32_t>()), 0;
      case 0xc7: return take(number<uint8_t>() + uint64_t{1}), 0;
      case 0xc8: return take(number<uint16_t>() + uint64_t{1}), 0;
      case 0xc9: return take(number<uint32_t>() + uint64_t{1}), 0;
      case 0xca: case 0xce: case 0xd2: return take(4), 0;
      case 0xcb: case 0xcf: case 0xd3: return take(8), 0;
      case 0xcc: case 0xd0: return take(1), 0;
      case 0xcd: case 0xd1: return take(2), 0;
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return take(1 + (uint64_t{1} << (head - 0xd4))), 0;
      case 0xdc: return number<uint16_t>();
      case 0xdd: return number<uint32_t>();
      case 0xde: return uint64_t{2} * number<uint16_t>();
      case 0xdf: return uint64_t{2} * number<uint32_t>();
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
