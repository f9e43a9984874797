//! The cost of a negotiation with 1,000 agents in the engine, beside that of 1,000 pieces of mail.

use baton::proto::v1::{self, MessageType as T};

use super::{
    Part,
    room::{ALICE, About, BATCH, Room},
};

const BIDDERS: usize = 1000;

pub(crate) fn parts() -> Vec<Part> {
    // Made at the first turn, so that other parts need not wait for it.
    let (mut mail, mut asked, mut offered) = (None, None, None);
    let all = BIDDERS as u64;
    vec![
        Part::many("negotiation/1000-pieces-of-mail", all, move || send_mail(mail.get_or_insert_with(room))),
        Part::many("negotiation/1000-asked", all, move || negotiate(asked.get_or_insert_with(room), 1)),
        Part::many("negotiation/1000-offers", all, move || negotiate(offered.get_or_insert_with(room), BIDDERS)),
    ]
}

fn bidder(number: usize) -> String {
    format!("bidder-{number}")
}

fn room() -> Room {
    Room::new("bidder", (0..BIDDERS).map(bidder))
}

fn send_mail(room: &mut Room) {
    for number in 0..BIDDERS {
        room.submit(ALICE, &bidder(number), T::Info, About::default(), &v1::Info::default());
        if number % BATCH == BATCH - 1 {
            room.finish();
        }
    }
    room.finish();
    assert_eq!(room.ack(), BIDDERS);
}

/// A negotiation with 1,000 agents asked, of which this many offer. The first offer is awarded.
fn negotiate(room: &mut Room, offers: usize) {
    let request = v1::TaskRequest { offers_wanted: u32::try_from(offers).expect("it is small"), ..Default::default() };
    let id = room.submit(ALICE, "all:bidder", T::TaskRequest, About::default(), &request).0;
    room.finish();
    // The bidders are asked and told over several steps.
    ack_all(room, BIDDERS);
    let about = About { correlation: &id, ..About::default() };
    let mut first = None;
    for number in 0..offers {
        let offer = v1::TaskOffer { confidence: 0.5, cost: 1.0, ..Default::default() };
        let offer_id = room.submit(&bidder(number), ALICE, T::TaskOffer, about, &offer).0;
        first.get_or_insert(offer_id);
        if number % BATCH == BATCH - 1 {
            room.finish();
        }
    }
    room.finish();
    assert_eq!(room.ack(), offers + 1, "the offers and the close");
    let accept = v1::TaskAccept { offer_id: first.unwrap_or_default(), ..Default::default() };
    room.submit(ALICE, &bidder(0), T::TaskAccept, about, &accept);
    room.finish();
    ack_all(room, offers);
}

/// Acks this many deliveries, or a few more: they come over several steps.
fn ack_all(room: &mut Room, many: usize) {
    let mut acked = 0;
    while acked < many {
        let more = room.ack();
        assert!(more > 0, "{acked} of {many} deliveries have come");
        acked += more;
    }
}
