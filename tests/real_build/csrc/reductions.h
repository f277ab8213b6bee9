// Sums, products, least and greatest numbers of several ranks' messages, in the types of NCCL.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "meeting.h"

enum Type { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kHalf, kFloat, kDouble, kBfloat16, kFloat8e4m3, kFloat8e5m2 };
enum Operation { kSum, kProduct, kMaximum, kMinimum, kAverage };

inline size_t size_of(int type) {
  switch (type) {
    case kInt8: case kUint8: case kFloat8e4m3: case kFloat8e5m2: return 1;
    case kHalf: case kBfloat16: return 2;
    case kInt32: case kUint32: case kFloat: return 4;
    default: return 8;
  }
}

// bfloat16 is the upper half of a float; rounded to the nearest, ties to even.
struct Bfloat16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = uint32_t{bits} << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  Bfloat16() = default;
  Bfloat16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    bits = std::isnan(value) ? 0x7FC0 : static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
  }
};

// IEEE's half precision: 5 bits of exponent, 10 of fraction.
struct Half {
  uint16_t bits;
  operator float() const {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                 : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                 : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return bits & 0x8000 ? -size : size;
  }
  Half() = default;
  Half(float value) {
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    float size = std::fabs(value);
    if (std::isnan(value)) {
      bits = 0x7E00;
    } else if (size >= 65520.0f) {  // half way to what would come after the greatest
      bits = sign | 0x7C00;
    } else {
      int exponent = size < 6.103515625e-05f ? -14 : std::ilogb(size);
      auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
      // Without the leading bit a subnormal number; a carry out of the fraction increases the exponent.
      bits = sign | static_cast<uint16_t>(steps + (static_cast<uint32_t>(exponent + 14) << 10));
    }
  }
};

// Ranks are taken in their order, and each partial result is rounded to the type.
template <typename T>
void reduce_as(const std::vector<Bytes>& all, size_t begin, size_t count, int operation, double scale, void* into) {
  auto* result = static_cast<T*>(into);
  for (size_t at = 0; at < count; ++at) {
    T total{};
    for (size_t rank = 0; rank < all.size(); ++rank) {
      T value;
      memcpy(&value, all[rank].data() + (begin + at) * sizeof(T), sizeof(T));
      if (scale != 1) value = static_cast<T>(value * static_cast<T>(scale));
      if (rank == 0) total = value;
      else if (operation == kProduct) total = static_cast<T>(total * value);
      else if (operation == kMaximum) total = std::max<T>(total, value);
      else if (operation == kMinimum) total = std::min<T>(total, value);
      else total = static_cast<T>(total + value);
    }
    if constexpr (std::is_integral_v<T>) {
      if (operation == kAverage) total = static_cast<T>(total / static_cast<T>(all.size()));
    }
    result[at] = total;
  }
}

// Writes elements `begin` to `begin + count` of the result. `scale`: factor of each rank's numbers before the sum.
inline void reduce(const std::vector<Bytes>& all, size_t begin, size_t count, int type, int operation, double scale, void* into) {
  bool floats = type >= kHalf && type <= kBfloat16;
  if (operation == kAverage && floats) scale = 1.0 / static_cast<double>(all.size());
  switch (type) {
    case kInt8: reduce_as<int8_t>(all, begin, count, operation, scale, into); break;
    case kUint8: reduce_as<uint8_t>(all, begin, count, operation, scale, into); break;
    case kInt32: reduce_as<int32_t>(all, begin, count, operation, scale, into); break;
    case kUint32: reduce_as<uint32_t>(all, begin, count, operation, scale, into); break;
    case kInt64: reduce_as<int64_t>(all, begin, count, operation, scale, into); break;
    case kUint64: reduce_as<uint64_t>(all, begin, count, operation, scale, into); break;
    case kHalf: reduce_as<Half>(all, begin, count, operation, scale, into); break;
    case kFloat: reduce_as<float>(all, begin, count, operation, scale, into); break;
    case kDouble: reduce_as<double>(all, begin, count, operation, scale, into); break;
    case kBfloat16: reduce_as<Bfloat16>(all, begin, count, operation, scale, into); break;
    default: throw std::runtime_error("the fake NCCL reduces no numbers of eight bits");
  }
}
