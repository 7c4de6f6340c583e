package broker

import "github.com/cdc-relay/cdc-relay/fault"

// known is what is known of one of Kafka's error codes.
type known struct {
	name  string // Kafka's own, as in its protocol documentation
	class fault.Class
}

// codes holds every error code of Kafka 4. Poison are those that blame the
// record; Stop those that a person must settle; Refresh those that say that the
// layout which we route by is old. All others are Retry, also those that no
// request of ours can get.
var codes = map[int]known{
	-1:  {"UNKNOWN_SERVER_ERROR", fault.Retry},
	1:   {"OFFSET_OUT_OF_RANGE", fault.Retry},
	2:   {"CORRUPT_MESSAGE", fault.Retry},              // a checksum that failed on the way passes when sent again
	3:   {"UNKNOWN_TOPIC_OR_PARTITION", fault.Refresh}, // the topic is not there yet
	4:   {"INVALID_FETCH_SIZE", fault.Retry},
	5:   {"LEADER_NOT_AVAILABLE", fault.Refresh},
	6:   {"NOT_LEADER_OR_FOLLOWER", fault.Refresh},
	7:   {"REQUEST_TIMED_OUT", fault.Retry}, // the leader stands; its followers are slow
	8:   {"BROKER_NOT_AVAILABLE", fault.Refresh},
	9:   {"REPLICA_NOT_AVAILABLE", fault.Refresh},
	10:  {"MESSAGE_TOO_LARGE", fault.Poison}, // narrowed to the record by the caller
	11:  {"STALE_CONTROLLER_EPOCH", fault.Retry},
	12:  {"OFFSET_METADATA_TOO_LARGE", fault.Retry},
	13:  {"NETWORK_EXCEPTION", fault.Refresh},
	14:  {"COORDINATOR_LOAD_IN_PROGRESS", fault.Retry},
	15:  {"COORDINATOR_NOT_AVAILABLE", fault.Retry},
	16:  {"NOT_COORDINATOR", fault.Refresh},
	17:  {"INVALID_TOPIC_EXCEPTION", fault.Poison},
	18:  {"RECORD_LIST_TOO_LARGE", fault.Poison}, // larger than the topic's segment
	19:  {"NOT_ENOUGH_REPLICAS", fault.Retry},
	20:  {"NOT_ENOUGH_REPLICAS_AFTER_APPEND", fault.Retry},
	21:  {"INVALID_REQUIRED_ACKS", fault.Stop},
	22:  {"ILLEGAL_GENERATION", fault.Retry},
	23:  {"INCONSISTENT_GROUP_PROTOCOL", fault.Retry},
	24:  {"INVALID_GROUP_ID", fault.Retry},
	25:  {"UNKNOWN_MEMBER_ID", fault.Retry},
	26:  {"INVALID_SESSION_TIMEOUT", fault.Retry},
	27:  {"REBALANCE_IN_PROGRESS", fault.Retry},
	28:  {"INVALID_COMMIT_OFFSET_SIZE", fault.Retry},
	29:  {"TOPIC_AUTHORIZATION_FAILED", fault.Stop}, // a topic that was allowed before halts alone: see Classify
	30:  {"GROUP_AUTHORIZATION_FAILED", fault.Stop},
	31:  {"CLUSTER_AUTHORIZATION_FAILED", fault.Stop},
	32:  {"INVALID_TIMESTAMP", fault.Poison},
	33:  {"UNSUPPORTED_SASL_MECHANISM", fault.Stop},
	34:  {"ILLEGAL_SASL_STATE", fault.Stop},
	35:  {"UNSUPPORTED_VERSION", fault.Stop},
	36:  {"TOPIC_ALREADY_EXISTS", fault.Retry},
	37:  {"INVALID_PARTITIONS", fault.Stop},
	38:  {"INVALID_REPLICATION_FACTOR", fault.Stop},
	39:  {"INVALID_REPLICA_ASSIGNMENT", fault.Stop},
	40:  {"INVALID_CONFIG", fault.Stop},
	41:  {"NOT_CONTROLLER", fault.Refresh},
	42:  {"INVALID_REQUEST", fault.Retry},                 // could be the broker's fault; never proven to be the record's
	43:  {"UNSUPPORTED_FOR_MESSAGE_FORMAT", fault.Poison}, // the topic's old format cannot hold it
	44:  {"POLICY_VIOLATION", fault.Poison},               // a policy of the brokers refuses it
	45:  {"OUT_OF_ORDER_SEQUENCE_NUMBER", fault.Retry},    // as another producer; 47 and 59 too
	46:  {"DUPLICATE_SEQUENCE_NUMBER", fault.Retry},       // the batch is in the log already: the lane counts it as acked
	47:  {"INVALID_PRODUCER_EPOCH", fault.Retry},
	48:  {"INVALID_TXN_STATE", fault.Retry},
	49:  {"INVALID_PRODUCER_ID_MAPPING", fault.Retry},
	50:  {"INVALID_TRANSACTION_TIMEOUT", fault.Retry},
	51:  {"CONCURRENT_TRANSACTIONS", fault.Retry},
	52:  {"TRANSACTION_COORDINATOR_FENCED", fault.Retry},
	53:  {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", fault.Stop},
	54:  {"SECURITY_DISABLED", fault.Stop},
	55:  {"OPERATION_NOT_ATTEMPTED", fault.Retry}, // kafka-go names it BrokerAuthorizationFailed
	56:  {"KAFKA_STORAGE_ERROR", fault.Refresh},
	57:  {"LOG_DIR_NOT_FOUND", fault.Retry},
	58:  {"SASL_AUTHENTICATION_FAILED", fault.Stop},
	59:  {"UNKNOWN_PRODUCER_ID", fault.Retry},
	60:  {"REASSIGNMENT_IN_PROGRESS", fault.Retry},
	61:  {"DELEGATION_TOKEN_AUTH_DISABLED", fault.Stop},
	62:  {"DELEGATION_TOKEN_NOT_FOUND", fault.Stop},
	63:  {"DELEGATION_TOKEN_OWNER_MISMATCH", fault.Stop},
	64:  {"DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", fault.Stop},
	65:  {"DELEGATION_TOKEN_AUTHORIZATION_FAILED", fault.Stop},
	66:  {"DELEGATION_TOKEN_EXPIRED", fault.Stop},
	67:  {"INVALID_PRINCIPAL_TYPE", fault.Retry},
	68:  {"NON_EMPTY_GROUP", fault.Retry},
	69:  {"GROUP_ID_NOT_FOUND", fault.Retry},
	70:  {"FETCH_SESSION_ID_NOT_FOUND", fault.Retry},
	71:  {"INVALID_FETCH_SESSION_EPOCH", fault.Retry},
	72:  {"LISTENER_NOT_FOUND", fault.Refresh},
	73:  {"TOPIC_DELETION_DISABLED", fault.Retry},
	74:  {"FENCED_LEADER_EPOCH", fault.Refresh},
	75:  {"UNKNOWN_LEADER_EPOCH", fault.Refresh},
	76:  {"UNSUPPORTED_COMPRESSION_TYPE", fault.Stop}, // set kafka.compression to one that the brokers take
	77:  {"STALE_BROKER_EPOCH", fault.Refresh},
	78:  {"OFFSET_NOT_AVAILABLE", fault.Retry},
	79:  {"MEMBER_ID_REQUIRED", fault.Retry},
	80:  {"PREFERRED_LEADER_NOT_AVAILABLE", fault.Retry},
	81:  {"GROUP_MAX_SIZE_REACHED", fault.Retry},
	82:  {"FENCED_INSTANCE_ID", fault.Retry},
	83:  {"ELIGIBLE_LEADERS_NOT_AVAILABLE", fault.Refresh},
	84:  {"ELECTION_NOT_NEEDED", fault.Retry},
	85:  {"NO_REASSIGNMENT_IN_PROGRESS", fault.Retry},
	86:  {"GROUP_SUBSCRIBED_TO_TOPIC", fault.Retry},
	87:  {"INVALID_RECORD", fault.Poison},
	88:  {"UNSTABLE_OFFSET_COMMIT", fault.Retry},
	89:  {"THROTTLING_QUOTA_EXCEEDED", fault.Retry},
	90:  {"PRODUCER_FENCED", fault.Retry},
	91:  {"RESOURCE_NOT_FOUND", fault.Retry},
	92:  {"DUPLICATE_RESOURCE", fault.Retry},
	93:  {"UNACCEPTABLE_CREDENTIAL", fault.Retry},
	94:  {"INCONSISTENT_VOTER_SET", fault.Retry},
	95:  {"INVALID_UPDATE_VERSION", fault.Retry},
	96:  {"FEATURE_UPDATE_FAILED", fault.Retry},
	97:  {"PRINCIPAL_DESERIALIZATION_FAILURE", fault.Retry},
	98:  {"SNAPSHOT_NOT_FOUND", fault.Retry},
	99:  {"POSITION_OUT_OF_RANGE", fault.Retry},
	100: {"UNKNOWN_TOPIC_ID", fault.Refresh},
	101: {"DUPLICATE_BROKER_REGISTRATION", fault.Retry},
	102: {"BROKER_ID_NOT_REGISTERED", fault.Retry},
	103: {"INCONSISTENT_TOPIC_ID", fault.Refresh},
	104: {"INCONSISTENT_CLUSTER_ID", fault.Retry},
	105: {"TRANSACTIONAL_ID_NOT_FOUND", fault.Retry},
	106: {"FETCH_SESSION_TOPIC_ID_ERROR", fault.Refresh},
	107: {"INELIGIBLE_REPLICA", fault.Retry},
	108: {"NEW_LEADER_ELECTED", fault.Refresh},
	109: {"OFFSET_MOVED_TO_TIERED_STORAGE", fault.Retry},
	110: {"FENCED_MEMBER_EPOCH", fault.Retry},
	111: {"UNRELEASED_INSTANCE_ID", fault.Retry},
	112: {"UNSUPPORTED_ASSIGNOR", fault.Retry},
	113: {"STALE_MEMBER_EPOCH", fault.Retry},
	114: {"MISMATCHED_ENDPOINT_TYPE", fault.Stop}, // the address is a controller's
	115: {"UNSUPPORTED_ENDPOINT_TYPE", fault.Stop},
	116: {"UNKNOWN_CONTROLLER_ID", fault.Retry},
	117: {"UNKNOWN_SUBSCRIPTION_ID", fault.Retry},
	118: {"TELEMETRY_TOO_LARGE", fault.Retry},
	119: {"INVALID_REGISTRATION", fault.Retry},
	120: {"TRANSACTION_ABORTABLE", fault.Retry},
	121: {"INVALID_RECORD_STATE", fault.Retry},
	122: {"SHARE_SESSION_NOT_FOUND", fault.Retry},
	123: {"INVALID_SHARE_SESSION_EPOCH", fault.Retry},
	124: {"FENCED_STATE_EPOCH", fault.Retry},
	125: {"INVALID_VOTER_KEY", fault.Retry},
	126: {"DUPLICATE_VOTER", fault.Retry},
	127: {"VOTER_NOT_FOUND", fault.Retry},
	128: {"INVALID_REGULAR_EXPRESSION", fault.Retry},
	129: {"REBOOTSTRAP_REQUIRED", fault.Refresh},
	130: {"STREAMS_INVALID_TOPOLOGY", fault.Retry},
	131: {"STREAMS_INVALID_TOPOLOGY_EPOCH", fault.Retry},
	132: {"STREAMS_TOPOLOGY_FENCED", fault.Retry},
	133: {"SHARE_SESSION_LIMIT_REACHED", fault.Retry},
	134: {"GROUP_DELETION_FAILED", fault.Retry},
	135: {"STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", fault.Retry},
	136: {"CONTROLLER_ID_NOT_REGISTERED", fault.Retry},
}
