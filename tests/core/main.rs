//! The pure domain: the whole state table on one page, and random stories against a second, naive model.

mod model;
mod table;
