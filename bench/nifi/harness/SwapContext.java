package harness;

import org.apache.nifi.controller.repository.FlowFileRepository;
import org.apache.nifi.controller.repository.SwapManagerInitializationContext;
import org.apache.nifi.controller.repository.claim.ResourceClaimManager;
import org.apache.nifi.events.EventReporter;

/** What a swap manager is told of the repositories that it belongs to. */
final class SwapContext implements SwapManagerInitializationContext {
    private final FlowFileRepository flowFiles;
    private final ResourceClaimManager claims;

    SwapContext(final FlowFileRepository flowFiles, final ResourceClaimManager claims) {
        this.flowFiles = flowFiles;
        this.claims = claims;
    }

    @Override
    public FlowFileRepository getFlowFileRepository() {
        return flowFiles;
    }

    @Override
    public ResourceClaimManager getResourceClaimManager() {
        return claims;
    }

    @Override
    public EventReporter getEventReporter() {
        return EventReporter.NO_OP;
    }
}
