package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskDecline;
import dev.baton.v1.TaskOffer;

/** The answer of a {@link BidListener}. */
public final class BidAnswer {
    private final Message payload;

    private BidAnswer(Message payload) {
        this.payload = payload;
    }

    /** Makes this offer, in place of the one before. The agent sets its round. */
    public static BidAnswer offer(TaskOffer offer) {
        return new BidAnswer(offer);
    }

    /** Makes no offer, which ends this agent's part. The text has at most 4096 bytes. */
    public static BidAnswer decline(RejectReason reason, String text) {
        return new BidAnswer(
                TaskDecline.newBuilder().setReason(reason).setReasonText(text).build());
    }

    /** Answers nothing now: {@link OfferWanted#offer} answers later. */
    public static BidAnswer later() {
        return new BidAnswer(null);
    }

    /** Returns the TaskOffer or TaskDecline, or null for later. */
    Message payload() {
        return payload;
    }
}
