/* Is a call as MEOpt declares it the vendor's? Enumerations are ints in ours, handles and addresses on the
 * card void pointers, the vendors' structures ours of the same layout (ALIKE); all else is the same type. Of
 * what a void pointer points to, headers of different releases say const or not. */
#ifndef MEOPT_TESTS_GPU_VENDOR_H
#define MEOPT_TESTS_GPU_VENDOR_H

#include <cstdint>
#include <tuple>
#include <type_traits>

template <class T> struct is_handle : std::false_type {
};
template <class Theirs, class Ours> struct is_alike : std::false_type {
};
/* numbers that stand for addresses */
#define HANDLE(type)                                                                                         \
    template <> struct is_handle<type> : std::true_type {                                                    \
    };
#define ALIKE(theirs, ours)                                                                                  \
    template <> struct is_alike<theirs, ours> : std::true_type {                                             \
    };

template <class Theirs, class Ours> constexpr bool same_value()
{
    using T = std::remove_cv_t<Theirs>;
    using O = std::remove_cv_t<Ours>;
    using pointed = std::remove_pointer_t<T>;
    using our_pointed = std::remove_pointer_t<O>;
    if constexpr (std::is_same_v<T, O> || is_alike<T, O>::value) return true;
    else if constexpr (std::is_enum_v<T>)
        return (std::is_same_v<O, int> && sizeof(T) == sizeof(int)) ||
               (std::is_same_v<O, uint64_t> && sizeof(T) == sizeof(uint64_t));
    else if constexpr (std::is_pointer_v<O> && std::is_void_v<our_pointed>)
        return is_handle<T>::value ||
               (std::is_pointer_v<T> && (std::is_class_v<pointed> || std::is_void_v<pointed>));
    else if constexpr (std::is_pointer_v<T> && std::is_pointer_v<O>)
        return std::is_const_v<pointed> == std::is_const_v<our_pointed> && same_value<pointed, our_pointed>();
    else return false;
}

template <class Theirs, class Ours, size_t... at> constexpr bool same_values(std::index_sequence<at...>)
{
    return (same_value<std::tuple_element_t<at, Theirs>, std::tuple_element_t<at, Ours>>() && ...);
}
template <class Theirs, class Ours> struct same_call;
template <class R, class... A, class S, class... B> struct same_call<R (*)(A...), S (*)(B...)> {
    static constexpr bool result()
    {
        if constexpr (sizeof...(A) != sizeof...(B) || !same_value<R, S>()) return false;
        else return same_values<std::tuple<A...>, std::tuple<B...>>(std::make_index_sequence<sizeof...(A)>());
    }
    static constexpr bool value = result();
};

#define SAME_CALL(symbol, ...)                                                                               \
    static_assert(same_call<decltype(&symbol), __VA_ARGS__>::value, #symbol " is declared otherwise");
#define SAME_NUMBER(theirs, ours) static_assert((long long)(theirs) == (long long)(ours), #theirs);

#endif
