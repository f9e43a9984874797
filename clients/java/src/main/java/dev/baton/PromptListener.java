package dev.baton;

/** Answers questions to this agent: see {@link AgentBuilder#onPrompt}. */
@FunctionalInterface
public interface PromptListener {
    /**
     * Is called for each question. A listener that returns without an answer leaves the question open. An exception
     * nacks the question, so that it is redelivered.
     */
    void onPrompt(Question question) throws Exception;
}
