"""Atomic operations, for CUDA C++: what combines a value into an element that other threads combine theirs into.

CUDA has additions of all types and extrema of whole numbers; a product is tried until no other thread was in between. Atomic
additions of float32 take subnormal numbers for zero.
"""

from __future__ import annotations

_NAMES = ("add_to(", "add_to_wide(", "mul_to(", "max_to(", "min_to(")
DEFINITIONS = """\
template <typename T> struct atomic_word { typedef T type; };
template <> struct atomic_word<long> { typedef long long type; };
template <> struct atomic_word<unsigned long> { typedef unsigned long long type; };
template <typename T> static __forceinline__ __device__ int add_to(T* to, T value) {
  typedef typename atomic_word<T>::type Word;
  atomicAdd((Word*)to, (Word)value);
  return 0;
}
static __forceinline__ __device__ int add_to(long long* to, long long value) {
  atomicAdd((unsigned long long*)to, (unsigned long long)value);
  return 0;
}
static __forceinline__ __device__ int add_to(long* to, long value) { return add_to((long long*)to, (long long)value); }
static __forceinline__ __device__ int add_to_wide(float* to, const float* values) {
  const float4 value = *(const float4*)values;
#if __CUDA_ARCH__ >= 900
  atomicAdd((float4*)to, value);
#else
  atomicAdd(to, value.x);
  atomicAdd(to + 1, value.y);
  atomicAdd(to + 2, value.z);
  atomicAdd(to + 3, value.w);
#endif
  return 0;
}
template <typename T> static __forceinline__ __device__ int max_to(T* to, T value) {
  typedef typename atomic_word<T>::type Word;
  atomicMax((Word*)to, (Word)value);
  return 0;
}
template <typename T> static __forceinline__ __device__ int min_to(T* to, T value) {
  typedef typename atomic_word<T>::type Word;
  atomicMin((Word*)to, (Word)value);
  return 0;
}
template <typename Word, typename T> static __forceinline__ __device__ int swapped_product(T* to, T value) {
  union { Word word; T value; } old, next;
  Word seen;
  old.word = *(volatile Word*)to;
  do {
    seen = old.word;
    next.value = old.value * value;
    old.word = atomicCAS((Word*)to, seen, next.word);
  } while (old.word != seen);
  return 0;
}
template <typename T> static __forceinline__ __device__ int mul_to(T* to, T value) {
  if (sizeof(T) == 4) return swapped_product<unsigned int>(to, value);
  return swapped_product<unsigned long long>(to, value);
}
"""
"""In CUDA C++. Whole numbers of 64 bits are `long` to some compilers and `long long` to others."""


def with_atomics(source: str) -> str:
    """CUDA C++ of TVM's generator with the functions that it calls for atomic operations."""
    return DEFINITIONS + source if any(name in source for name in _NAMES) else source
