# dapl with the live page: docker build -t dapl . && docker run -v $PWD:/work dapl demo --out runs/demo
FROM python:3.11-slim
WORKDIR /opt/dapl
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt '.[weights,serve,sweep,export]'
WORKDIR /work
ENTRYPOINT ["dapl"]
