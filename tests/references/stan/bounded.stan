// A rate above zero and a shift between two ends; rates that are absurd are rejected, as programs do.
data {
  int<lower=0> n;
  array[n] int<lower=0> y;
}
parameters {
  real<lower=0> rate;
  real<lower=-1, upper=2> shift;
}
model {
  if (rate > 50) {
    reject("rate must be at most 50, found ", rate);
  }
  rate ~ gamma(2, 1);
  shift ~ normal(0, 1);
  y ~ poisson(rate * exp(shift));
}
