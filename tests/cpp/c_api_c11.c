int c_api_c11_unused;
