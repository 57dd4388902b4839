// The words of problem strings: names of enumerators, numbers, and what an error quotes.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/strings.h"
#include "deltaworks/status.h"

namespace deltaworks::text {

using std::string_view;

// Names by the values of their enumerations.
inline constexpr string_view kVariants[] = {"gdn", "kda", "gdn2", "gdp", "mamba2"};
inline constexpr string_view kPasses[] = {"fwd", "bwd"};
inline constexpr string_view kDTypes[] = {"fp32", "bf16", "fp16", "fp64", "i32", "i64"};
inline constexpr string_view kDevices[] = {"cpu", "cuda", "other"};

template <class Enum>
std::optional<Enum> find(std::span<const string_view> names, string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

template <class Enum>
inline string_view name_in(std::span<const string_view> names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

inline std::string list(std::span<const string_view> names, string_view separator) {
  std::string text;
  for (string_view name : names) text += cat(text.empty() ? "" : separator, name);
  return text;
}

// What came, for an error: short and printable whatever it was.
inline std::string quote(string_view token) {
  constexpr std::size_t kShown = 60;
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : token.substr(0, kShown)) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text + (token.size() > kShown ? "...'" : "'");
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(Status::kInvalidValue, cat("problem string: expected ", parts...));
}

template <class Enum>
Enum read_name(string_view what, std::span<const string_view> names, string_view token) {
  if (const auto value = find<Enum>(names, token)) return *value;
  fail(what, " (", list(names, ", "), "), got ", quote(token));
}

template <class Number>
std::optional<Number> read_number(string_view text) {
  Number number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The shortest text that reads back as the same number.
inline std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

inline std::vector<string_view> split(string_view text, char separator) {
  std::vector<string_view> parts;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == string_view::npos) return parts;
    at = end + 1;
  }
}

}  // namespace deltaworks::text
