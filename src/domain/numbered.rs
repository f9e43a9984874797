//! Enums whose values have numbers on the wire and on disk.

/// Gives enums their numbers, both ways. A test in `wire` holds the numbers against the schema.
macro_rules! numbered {
    ($($type:ident { $($variant:ident = $number:literal,)* })*) => {$(
        impl $type {
            /// Its number on the wire and on disk; never 0.
            pub const fn number(self) -> i32 {
                match self { $(Self::$variant => $number,)* }
            }

            /// The value of this number.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    )*};
}

pub(crate) use numbered;
