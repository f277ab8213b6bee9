// Objects that several share and the last one frees. The interpreter's lock is held wherever they are used.
#pragma once

#include <cstdint>
#include <utility>

namespace order {

class Counted {
 public:
  int64_t owners = 0;
};

template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* it) : it_(it) { hold(); }
  Ref(const Ref& other) : it_(other.it_) { hold(); }
  Ref(Ref&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  ~Ref() {
    if (it_ != nullptr && --it_->owners == 0) delete it_;
  }
  T* operator->() const { return it_; }
  T& operator*() const { return *it_; }
  T* get() const { return it_; }
  bool operator==(const Ref& other) const { return it_ == other.it_; }

 private:
  void hold() {
    if (it_ != nullptr) ++it_->owners;
  }
  T* it_ = nullptr;
};

template <typename T, typename... Args>
Ref<T> make(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace order
