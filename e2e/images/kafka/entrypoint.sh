#!/bin/bash
# Writes KAFKA_* into a properties file (KAFKA_LOG_DIRS is log.dirs, two underscores are one, three a dash), formats the storage the
# first time and becomes the broker, which then is process 1 and gets the signals. Only builtins of the shell are there.
set -euo pipefail

dir=/var/lib/kafka
export KAFKA_LOG_DIRS=${KAFKA_LOG_DIRS:-$dir/data}
for name in "${!KAFKA_@}"; do
	case $name in
	KAFKA_HEAP_OPTS | KAFKA_JVM_PERFORMANCE_OPTS | KAFKA_OPTS | KAFKA_LOG4J_OPTS) continue ;;
	esac
	key=${name#KAFKA_} key=${key,,}
	key=${key//___/-} key=${key//__/$'\1'} key=${key//_/.} key=${key//$'\1'/_}
	printf '%s=%s\n' "$key" "${!name}"
done >$dir/server.properties

printf '%s\n' 'rootLogger.level = warn' 'rootLogger.appenderRef.out.ref = OUT' \
	'appender.out.type = Console' 'appender.out.name = OUT' 'appender.out.layout.type = PatternLayout' \
	'appender.out.layout.pattern = %d %p %c{1} %m%n' \
	'logger.server.name = kafka.server.KafkaRaftServer' 'logger.server.level = info' >$dir/log4j2.properties

if [ ! -s "$KAFKA_LOG_DIRS/meta.properties" ]; then
	java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format \
		-t "${CLUSTER_ID:-4L6g3nShT-eMCtK--X86sw}" -c $dir/server.properties
fi
# The options are words, to be split.
exec java ${KAFKA_HEAP_OPTS:--Xmx512m} ${KAFKA_JVM_PERFORMANCE_OPTS:--XX:+UseSerialGC} -XX:-UsePerfData -Djava.awt.headless=true \
	-Dlog4j2.configurationFile=$dir/log4j2.properties ${KAFKA_OPTS:-} -cp '/opt/kafka/libs/*' kafka.Kafka $dir/server.properties
