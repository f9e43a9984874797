//! The pure core: the whole state table on one page, and random stories against a second, naive model.

mod model;
mod table;
