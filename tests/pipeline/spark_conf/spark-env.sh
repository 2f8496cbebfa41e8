# Java lives for seconds in tests: optimising its code for hours to come costs more than it gives.
brief_java="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
export SPARK_SUBMIT_OPTS=$brief_java SPARK_DAEMON_JAVA_OPTS=$brief_java SPARK_LAUNCHER_OPTS=$brief_java
