# What our images are built in, and what the stand-ins begin with, from Debian's packages.
FROM python:3.11-slim
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends \
    binutils openjdk-17-jre-headless postgresql prometheus redis-server \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /usr/share/doc /usr/share/man
