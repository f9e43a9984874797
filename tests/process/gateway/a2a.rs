//! A2A 1.0 at `/a2a/NAME`, with requests by hand.

mod cards;
