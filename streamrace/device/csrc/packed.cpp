#include "packed.h"

#include <cstring>

#include "trace.h"

namespace simgpu {
namespace {

class Packer {
 public:
  explicit Packer(std::string& bytes) : bytes_(bytes) {}

  Packer& array(size_t size) {
    if (size < 16) return byte(0x90 | size);
    return size < 1 << 16 ? head<uint16_t>(0xdc, size) : head<uint32_t>(0xdd, size);
  }
  Packer& number(int64_t value) {
    if (value >= 0) {
      if (value < 1 << 7) return byte(static_cast<uint64_t>(value));
      if (value < 1 << 8) return head<uint8_t>(0xcc, value);
      if (value < 1 << 16) return head<uint16_t>(0xcd, value);
      return value < int64_t{1} << 32 ? head<uint32_t>(0xce, value) : head<uint64_t>(0xcf, value);
    }
    if (value >= -(1 << 5)) return byte(static_cast<uint8_t>(value));
    if (value >= -(1 << 7)) return head<uint8_t>(0xd0, value);
    if (value >= -(1 << 15)) return head<uint16_t>(0xd1, value);
    return value >= -(int64_t{1} << 31) ? head<uint32_t>(0xd2, value) : head<uint64_t>(0xd3, value);
  }
  Packer& text(const char* text) {
    const size_t size = std::strlen(text);
    if (size < 32) byte(0xa0 | size);
    else if (size < 1 << 8) head<uint8_t>(0xd9, size);
    else if (size < 1 << 16) head<uint16_t>(0xda, size);
    else head<uint32_t>(0xdb, size);
    bytes_.append(text, size);
    return *this;
  }
  Packer& name(int64_t id) { return text(name_of(id)); }
  Packer& how(int64_t which) { return text(schema::kHow[which]); }
  Packer& stream(int64_t id) { return number(id == schema::kHost ? -1 : id); }
  Packer& truth(bool value) { return byte(value ? 0xc3 : 0xc2); }
  Packer& none() { return byte(0xc0); }
  Packer& real(int64_t bits) { return head<uint64_t>(0xcb, bits); }
  // Packs the next `count` accesses of the record.
  Packer& accesses(int64_t count) {
    array(static_cast<size_t>(count));
    for (; count > 0; --count, accesses_ += 4) access(accesses_);
    return *this;
  }
  // Starts a record with this many fields. `accesses`: the words behind those of the fields.
  Packer& record(schema::Code which, size_t fields, const int64_t* accesses) {
    accesses_ = accesses;
    return array(fields + 1).number(which);
  }

 private:
  std::string& bytes_;
  const int64_t* accesses_ = nullptr;

  void access(const int64_t* words) {
    array(schema::Access::fields).number(words[0]).number(words[1]).number(words[2]);
    if (words[3] == 0) return none(), void();
    const auto& layout = trace().layout(words[3]);  // an item's bytes, then size, stride, ...
    const size_t dims = (layout.size() - 1) / 2;
    array(3).number(layout[0]);
    for (size_t first : {1, 2}) {
      array(dims);
      for (size_t dim = 0; dim < dims; ++dim) number(layout[first + 2 * dim]);
    }
  }

  Packer& byte(uint64_t value) {
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  template <typename Unsigned, typename Value>
  Packer& head(int kind, Value value) {
    char made[1 + sizeof(Unsigned)] = {static_cast<char>(kind)};
    auto rest = static_cast<Unsigned>(value);
    for (size_t at = sizeof(Unsigned); at > 0; --at, rest = static_cast<Unsigned>(static_cast<uint64_t>(rest) >> 8))
      made[at] = static_cast<char>(rest & 0xff);
    bytes_.append(made, sizeof made);
    return *this;
  }
};

}  // namespace

void pack(const int64_t* words, int64_t count, int64_t& at, Packed& packed) {
  packed = {};
  Packer to(packed.bytes);
  for (; at < count; at += 2 + words[at + 1]) {
    const auto kind = static_cast<WordKind>(words[at]);
    if (kind != WordKind::kLayout && !schema::pack(to, kind, words + at + 2)) return;
    if (kind != WordKind::kLaunch && kind != WordKind::kCollective) continue;
    ++packed.operations;
    packed.op = words[at + 2 + schema::Launch::op];
  }
}

}  // namespace simgpu
