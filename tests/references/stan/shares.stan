// Shares that sum to one: the evidence of counts under a Dirichlet is known.
data {
  int<lower=2> K;
  array[K] int<lower=0> n;
}
parameters {
  simplex[K] p;
}
model {
  p ~ dirichlet(rep_vector(2, K));
  n ~ multinomial(p);
}
