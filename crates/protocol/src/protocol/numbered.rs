//! Enums whose values have numbers on the wire and on disk.

/// Gives enums their numbers, both ways. For this crate and the broker; no part of the interface. A test in `wire` checks the numbers against the schema.
#[doc(hidden)]
#[macro_export]
macro_rules! numbered {
    ($($type:ident { $($variant:ident = $number:literal,)* })*) => {$(
        impl $type {
            /// The number on the wire and on disk; never 0.
            pub const fn number(self) -> i32 {
                match self { $(Self::$variant => $number,)* }
            }

            /// The value of this number. `None`: no value has it.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    )*};
}
